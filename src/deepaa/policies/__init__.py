"""The policies shipped with the package, one JSON file each."""
