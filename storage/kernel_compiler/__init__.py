"""Compiles the kernels: from Python to one extension module, with numba and LLVM.

`lower` has numba make LLVM code of each kernel, for one of the kinds of processors of `variants`;
`extension` makes the code between CPython and the kernels; `build` runs both and links.  `hook` is
where hatchling asks for it.  Nothing here is in a wheel.
"""
