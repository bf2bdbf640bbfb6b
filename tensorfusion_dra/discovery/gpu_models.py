"""Compute of known NVIDIA cards.

Each row has the fields model, fullModelName and fp16TFlops of Tensor Fusion's gpu-info.yaml:

- model is unique. If users select the card by it (A10, RTX4090), the row applies to every card of
  that short name.
- fullModelName is NVML's name.
- fp16TFlops is the rate of dense FP16 matrix multiplication with accumulation in FP32 (as in
  training and most inference), in TFLOPS: on tensor cores if the card has them, otherwise with
  packed FP16, otherwise in FP32, which programs then use. All rows use this definition, because
  shares of different cards are compared with each other.

A comment gives the reason for each figure that differs from Tensor Fusion's table; "was" refers to
that table. "Sparse / 2" means that the datasheet gives the figure with structured sparsity, which
doubles it. Cards with an uncertain figure are not listed; the driver estimates their compute from
cores and clock.

The table is Python, so that it is compiled with the package: every start reads it, and parsing the
same rows as YAML took a tenth of the CPU time until the kubelet could register the driver.
"""

from typing import Final

PACKAGED: Final[tuple[tuple[str, str, float], ...]] = (
    # Blackwell, data centre.
    #
    # Not in Tensor Fusion's table under NVML's names ("NVIDIA B200 SXM" is not one of them).
    ("B200", "NVIDIA B200", 2250),  # HGX B200: sparse 4500 / 2
    ("B300", "NVIDIA B300 SXM6 AC", 2250),  # HGX B300: sparse 4500 / 2
    ("GB200", "NVIDIA GB200", 2500),  # NVL72: sparse 360000 / 72 / 2
    ("GB300", "NVIDIA GB300", 2500),  # NVL72: sparse 360000 / 72 / 2
    # Hopper.
    ("H100_SXM", "NVIDIA H100 80GB HBM3", 989),
    # Was 835, the figure of the NVL card; datasheet: sparse 1513 / 2.
    ("H100_PCIe", "NVIDIA H100 PCIe", 756),
    # Was 989, the figure of the SXM module; datasheet: sparse 1671 / 2.
    ("H100_NVL", "NVIDIA H100 NVL", 835),
    ("H800_SXM", "NVIDIA H800 80GB HBM3", 989),
    # NVML's other name of the same module.
    ("H800_SXM_80G", "NVIDIA H800", 989),
    # Was 835; same figure as the H100 PCIe.
    ("H800_PCIe", "NVIDIA H800 PCIe", 756),
    ("H800_NVL", "NVIDIA H800 NVL", 835),
    ("H200_SXM", "NVIDIA H200", 989),
    ("H200_NVL", "NVIDIA H200 NVL", 835),
    ("H20", "NVIDIA H20", 148),
    # Not in Tensor Fusion's table; the GPU of the H100 SXM, with any size of CPU memory.
    ("GH200", "NVIDIA GH200 480GB", 989),
    # Ada, data centre.
    ("L4", "NVIDIA L4", 121),
    # The datasheet's "181.05 | 362.1" is dense | sparse: 362 would be the sparse figure.
    ("L40", "NVIDIA L40", 181.05),
    # Was 365; datasheet: 362.05 dense.
    ("L40S", "NVIDIA L40S", 362.05),
    # Not in Tensor Fusion's table; datasheet.
    ("L20", "NVIDIA L20", 119.5),
    # Ampere, data centre.
    ("A100_SXM_80G", "NVIDIA A100-SXM4-80GB", 312),
    ("A100_SXM_40G", "NVIDIA A100-SXM4-40GB", 312),
    ("A100_PCIe_80G", "NVIDIA A100 80GB PCIe", 312),
    ("A100_PCIe_80GB", "NVIDIA A100-PCIE-80GB", 312),
    ("A100_PCIe_40G", "NVIDIA A100 40GB PCIe", 312),
    ("A100_PCIe_40GB", "NVIDIA A100-PCIE-40GB", 312),
    ("A800_SXM_80G", "NVIDIA A800-SXM4-80GB", 312),
    ("A800_SXM_40G", "NVIDIA A800-SXM4-40GB", 312),
    ("A800_PCIe_80G", "NVIDIA A800-PCIE-80GB", 312),
    # NVML's other name of the same card.
    ("A800_PCIe_80GB", "NVIDIA A800 80GB PCIe", 312),
    ("A800_PCIe_40G", "NVIDIA A800-PCIE-40GB", 312),
    # Not in Tensor Fusion's table; datasheet.
    ("A30", "NVIDIA A30", 165),
    # NVML's name; the table had "NVIDIA A40-PCIE-48GB", which no driver reports.
    ("A40", "NVIDIA A40", 149.7),
    ("A10", "NVIDIA A10", 125),
    # Was 125, the figure of the A10; this card has tensor cores at half the rate (datasheet of
    # AWS).
    ("A10G", "NVIDIA A10G", 70),
    # Not in Tensor Fusion's table; NVML counts each of the four GPUs of this card.
    ("A16", "NVIDIA A16", 17.9),
    # Not in Tensor Fusion's table; datasheet.
    ("A2", "NVIDIA A2", 18),
    # Turing, Volta and Pascal, data centre.
    ("T4", "Tesla T4", 65),
    # NVML's names; the table had "NVIDIA V100" and "NVIDIA V100S". The PCIe card has a lower clock:
    # 112.
    ("V100_SXM2_16G", "Tesla V100-SXM2-16GB", 125),
    ("V100_SXM2_32G", "Tesla V100-SXM2-32GB", 125),
    ("V100_SXM3_32G", "Tesla V100-SXM3-32GB", 125),
    ("V100_PCIe_16G", "Tesla V100-PCIE-16GB", 112),
    ("V100_PCIe_32G", "Tesla V100-PCIE-32GB", 112),
    ("V100S", "Tesla V100S-PCIE-32GB", 130),
    # Not in Tensor Fusion's table. P100: packed FP16, twice the FP32 rate.
    ("P100_SXM2_16G", "Tesla P100-SXM2-16GB", 21.2),
    ("P100_PCIe_16G", "Tesla P100-PCIE-16GB", 18.7),
    ("P100_PCIe_12G", "Tesla P100-PCIE-12GB", 18.7),
    # P40, P4: FP32, because their FP16 runs at 1/64 of the FP32 rate and is not used.
    ("P40", "Tesla P40", 11.76),
    ("P4", "Tesla P4", 5.5),
    # Workstation.
    #
    # Blackwell: not in Tensor Fusion's table; FP32 of the datasheet (126, 110, 120) x 4.
    ("RTXPRO6000_WS", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8),
    ("RTXPRO6000_MaxQ", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9),
    ("RTXPRO6000_Server", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 480),
    # Ada: the datasheets give FP8 with sparsity, four times this. 6000: 1457; 5880: 1108.4; 5000:
    # 1044.4; 4500: 634; 4000 SFF: 306.8; 2000: 191.9, each 16 times its FP32. For the 4000 that is
    # 427.6 of 26.7 (the datasheet prints 327.6, which its cores and clock contradict). Tensor
    # Fusion's table had 323 (6000), 163 (4000) and 46 (2000).
    ("RTX6000Ada", "NVIDIA RTX 6000 Ada Generation", 364.25),
    ("RTX5880Ada", "NVIDIA RTX 5880 Ada Generation", 277.1),
    ("RTX5000Ada", "NVIDIA RTX 5000 Ada Generation", 261.1),
    ("RTX4500Ada", "NVIDIA RTX 4500 Ada Generation", 158.5),
    ("RTX4000Ada", "NVIDIA RTX 4000 Ada Generation", 106.9),
    ("RTX4000SFFAda", "NVIDIA RTX 4000 SFF Ada Generation", 76.7),
    ("RTX2000Ada", "NVIDIA RTX 2000 Ada Generation", 47.98),
    # Was 38.71, the FP32 figure; datasheet: sparse 309.7 / 2.
    ("A6000", "NVIDIA RTX A6000", 154.8),
    # Not in Tensor Fusion's table; FP32 of the datasheet x 4, as for the other Ampere cards.
    ("A5500", "NVIDIA RTX A5500", 136.4),
    ("A5000", "NVIDIA RTX A5000", 111),
    ("A4500", "NVIDIA RTX A4500", 94.5),
    ("A4000", "NVIDIA RTX A4000", 76.5),
    ("A2000", "NVIDIA RTX A2000", 32),
    # Not in Tensor Fusion's table; Turing whitepaper, FP16 tensor with FP32 accumulate.
    ("QuadroRTX8000", "Quadro RTX 8000", 130.5),
    ("QuadroRTX6000", "Quadro RTX 6000", 130.5),
    ("QuadroRTX5000", "Quadro RTX 5000", 89.2),
    ("QuadroRTX4000", "Quadro RTX 4000", 57),
    ("QuadroGV100", "Quadro GV100", 118.5),
    # Was 32.62, the FP16 figure without tensor cores; Turing whitepaper.
    ("TITANRTX", "NVIDIA TITAN RTX", 130.5),
    # Not in Tensor Fusion's table.
    ("TITANV", "NVIDIA TITAN V", 110),
    # GeForce RTX 50.
    #
    # NVIDIA's "AI TOPS" (sparse FP4) are 16 times this: 3352, 2375, 1801, 1406, 988, 759, 614, 421.
    # Tensor Fusion's figures were twice as large (accumulation in FP16, unlike in its older rows),
    # and those of the 5060 cards (51, 42) matched neither; the name "GeForceRTX 5090D" lacked a
    # blank.
    ("RTX5090", "NVIDIA GeForce RTX 5090", 209.5),
    ("RTX5090D", "NVIDIA GeForce RTX 5090 D", 148.4),
    ("RTX5080", "NVIDIA GeForce RTX 5080", 112.6),
    ("RTX5070Ti", "NVIDIA GeForce RTX 5070 Ti", 87.9),
    ("RTX5070", "NVIDIA GeForce RTX 5070", 61.75),
    ("RTX5060Ti", "NVIDIA GeForce RTX 5060 Ti", 47.4),
    ("RTX5060", "NVIDIA GeForce RTX 5060", 38.4),
    ("RTX5050", "NVIDIA GeForce RTX 5050", 26.3),
    # GeForce RTX 40.
    #
    # For these, "AI TOPS" (sparse FP8) are 8 times this figure. They correct: 4070 Ti SUPER (was
    # 80), 4070 Ti (78.86), 4070 SUPER (60), 4060 (44, the figure of the Ti). Both 4060 Ti have one
    # NVML name.
    ("RTX4090", "NVIDIA GeForce RTX 4090", 165.16),
    ("RTX4090D", "NVIDIA GeForce RTX 4090 D", 147.1),
    ("RTX4080S", "NVIDIA GeForce RTX 4080 SUPER", 104),
    ("RTX4080", "NVIDIA GeForce RTX 4080", 97.48),
    ("RTX4070TiS", "NVIDIA GeForce RTX 4070 Ti SUPER", 88.2),
    ("RTX4070Ti", "NVIDIA GeForce RTX 4070 Ti", 80.1),
    ("RTX4070S", "NVIDIA GeForce RTX 4070 SUPER", 71),
    ("RTX4070", "NVIDIA GeForce RTX 4070", 58),
    ("RTX4060Ti", "NVIDIA GeForce RTX 4060 Ti", 44),
    ("RTX4060", "NVIDIA GeForce RTX 4060", 30.2),
    # GeForce RTX 30.
    #
    # NVML has one name for both 3080; the table had "(10 GB)" and "(12 GB)", which no driver
    # reports. The figure is that of the 10 GB card (12 GB: 61.2).
    ("RTX3090Ti", "NVIDIA GeForce RTX 3090 Ti", 80),
    ("RTX3090", "NVIDIA GeForce RTX 3090", 71.2),
    ("RTX3080Ti", "NVIDIA GeForce RTX 3080 Ti", 68.2),
    ("RTX3080", "NVIDIA GeForce RTX 3080", 59.6),
    ("RTX3070Ti", "NVIDIA GeForce RTX 3070 Ti", 43.6),
    ("RTX3070", "NVIDIA GeForce RTX 3070", 40.6),
    ("RTX3060Ti", "NVIDIA GeForce RTX 3060 Ti", 32.4),
    ("RTX3060", "NVIDIA GeForce RTX 3060", 26),
    ("RTX3050", "NVIDIA GeForce RTX 3050", 18.22),
    # GeForce 20, 16 and 10.
    #
    # RTX 20: Turing whitepaper, FP16 tensor with FP32 accumulate, twice the figures of the table
    # (26.9 for the 2080 Ti is FP16 without tensor cores).
    ("RTX2080Ti", "NVIDIA GeForce RTX 2080 Ti", 53.8),
    ("RTX2080S", "NVIDIA GeForce RTX 2080 SUPER", 44.6),
    ("RTX2080", "NVIDIA GeForce RTX 2080", 40.3),
    ("RTX2070S", "NVIDIA GeForce RTX 2070 SUPER", 36.2),
    ("RTX2070", "NVIDIA GeForce RTX 2070", 29.9),
    ("RTX2060S", "NVIDIA GeForce RTX 2060 SUPER", 28.7),
    ("RTX2060", "NVIDIA GeForce RTX 2060", 25.8),
    # No tensor cores, packed FP16: 1536 cores x 1.77 GHz x 4. Was 9.6.
    ("GTX1660Ti", "NVIDIA GeForce GTX 1660 Ti", 10.87),
    # FP32, as for the P40; the table had FP16 at 1/64 (0.101 to 0.177), for the 1050 Ti twice FP32
    # (4).
    ("GTX1080Ti", "NVIDIA GeForce GTX 1080 Ti", 11.34),
    ("GTX1080", "NVIDIA GeForce GTX 1080", 8.87),
    ("GTX1070", "NVIDIA GeForce GTX 1070", 6.46),
    ("GTX1050Ti", "NVIDIA GeForce GTX 1050 Ti", 2.1),
)
