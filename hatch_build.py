"""What `pip install` and `pip wheel` do beside copying files: compile the C kernels.

Without a C compiler the package is built all the same; `deepaa doctor` says that torch's slower
kernels serve, and why.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from build_kernels import CHECKSUM, FOLDER, LIBRARY, BuildError, build, note_reason


class KernelsHook(BuildHookInterface):  # type: ignore[misc, type-arg]
    """Builds in place, and takes the library into the wheel, which then is for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; called before the files of a wheel or of an editable installation are listed."""
        place = FOLDER.relative_to(Path(__file__).parent)
        try:
            build()
        except (BuildError, OSError) as error:
            self.app.display_warning(f"no C kernels, torch's slower ones will serve: {error}")
            build_data["artifacts"].append(f"/{place}/{note_reason(error).name}")
            return
        build_data["artifacts"] += [f"/{place}/{name}" for name in (LIBRARY, CHECKSUM)]
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"  # ctypes loads it: any Python will do
