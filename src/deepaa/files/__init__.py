"""Files that somebody else may have made: opened if regular, read up to a limit, never run.

Here belongs what every reader of files needs, whatever the files hold.
"""

from deepaa.files.npz import (
    Archive as Archive,
    Header as Header,
    open_archive as open_archive,
)
from deepaa.files.regular import open_regular as open_regular, read_regular as read_regular
from deepaa.files.tar import (
    Member as Member,
    open_tar as open_tar,
    tar_members as tar_members,
)
from deepaa.files.text import (
    columns_of as columns_of,
    fit_for as fit_for,
    in_columns as in_columns,
    listed as listed,
    plural as plural,
    printable as printable,
    shown as shown,
)
