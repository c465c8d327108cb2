"""H5: blocks are stored before they are written, or loaded while they are read."""
