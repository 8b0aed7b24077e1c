//! The formats of weights, as rows of the table in `docs/models.md`.

/// A format of weights: its name, the prefix of its goldens' names, its checkpoints, and its representation in
/// memory. `{types}` is replaced by the names of [`GGUF_TYPES`](super::GGUF_TYPES).
pub(super) const FORMATS: [(&str, &str, &str, &str); 9] = [
    ("safetensors", "", "F32, F16, BF16; single and sharded", "as stored"),
    ("`awq`", "awq", "AutoAWQ: 4 bits, GEMM layout, zero-points", "4 bits"),
    (
        "`gptq`",
        "gptq",
        "AutoGPTQ, GPTQModel: 4 and 8 bits, any even group size or -1, with and without act-order, symmetric or not, formats v1 and v2",
        "4 or 8 bits",
    ),
    (
        "`fp8`",
        "fp8",
        "`quant_method` fp8 (scales per tensor, channel or block), compressed-tensors' `float-quantized` and ModelOpt's FP8: e4m3 weights; activations are rounded to e4m3 as the checkpoint says",
        "8 bits",
    ),
    (
        "compressed-tensors",
        "compressed-tensors",
        "`pack-quantized` (integers of 4 and 8 bits, per group or channel, symmetric or not, with and without act-order) and `int-quantized` (8 bits per \
         channel); activations are not rounded",
        "4 or 8 bits",
    ),
    (
        "`squeezellm`",
        "squeezellm",
        "4 bits, with and without the sparse part",
        "4 bits and tables, sparse values separately",
    ),
    (
        "MXFP4",
        "mxfp4",
        "`quant_method` mxfp4 (gpt-oss): expert matrices in e2m1, with a power of two for each group of 32",
        "4 bits, with scales in bf16 (in f32 on a GPU)",
    ),
    (
        "NVFP4",
        "nvfp4",
        "compressed-tensors' `nvfp4-pack-quantized` and ModelOpt's NVFP4: e2m1 weights with an e4m3 scale for each group of 16 and one scale for the tensor; \
         activations are not rounded",
        "4 bits with f32 scales: 6 bits a weight, on a GPU 8",
    ),
    (
        "GGUF",
        "gguf",
        "{types}; single and split files",
        "2 to 6 or 8 bits, as in the file (4 or 8 on a GPU), with scales in f16 or f32, and sub-scales of K-quants",
    ),
];
