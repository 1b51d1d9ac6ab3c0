"""The version of the package. It equals that of CMakeLists.txt; a test compares them."""

VERSION = "0.1.0"
