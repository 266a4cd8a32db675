"""The data: the NORB binary-matrix format, smallNORB, rendered toys, splits and augmentation."""
