"""Compiles the kernels: from Python to an extension module for each platform, with numba and LLVM.

`lower` has numba make LLVM code of the kernels, once for all processors, with `instructions` and
`checksum` in the place of what Python does slowly.  `glue` is the code between CPython and the
kernels, compiled like them, and the table that describes the kernels to it.  `platforms` has LLVM
optimize all of that for each kind of processor, and links it; `build` runs these steps, where
`hook` is asked for a wheel by hatchling.  Nothing here is in a wheel.
"""
