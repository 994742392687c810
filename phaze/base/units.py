"""Units: SI base units inside, binary prefixes where the field uses them."""

KIB = 2**10
MIB = 2**20
GIB = 2**30
UM2_PER_MM2 = 1e6
