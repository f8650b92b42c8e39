"""Other libraries' names and signatures over linattn's operators.

``flash_kda``, ``flash_qla`` and ``cula`` stand in for the packages of those names (``import
linattn.compat.flash_kda as flash_kda``); ``fla`` makes linattn a backend of flash-linear-attention.
Signatures, result types and what is written in place are the originals'. CPU tensors are accepted,
errors are linattn's, and what the originals get wrong is not repeated.
"""
