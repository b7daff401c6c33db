"""What to say where a package that an extra brings cannot be imported."""

from __future__ import annotations

from deepaa.files import listed


def not_imported(error: ImportError, package: str, need: str, extra: str) -> str:
    """A line that tells a package that is missing from one that is there and does not work.

    Args:
        error: What the import raised.
        need: What needs the package.
        extra: What pip installs for it, as deepaa[hf].
    """
    advice = f"pip install '{extra}'"
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return f"{need} need {package}: {advice}"
    reason = listed([" ".join(str(error).split())])
    broken = f"{need} need {package}, which is installed but cannot be imported"
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"{broken}: its {listed([error.name])} is missing; pip install {package} again"
    return f"{broken} ({reason}); {advice.replace('install', 'install -U')}"
