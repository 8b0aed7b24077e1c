//! The tables of architectures and formats in `docs/models.md`: written from the rows here and the goldens that the tests run, so
//! that they claim nothing else.

use super::Finding;
use super::files::SourceFile;

pub(super) const PAGE: &str = "docs/models.md";
const BEGIN: &str = "<!-- models: written by `cargo xtask docs` -->\n";
const END: &str = "<!-- models: end -->\n";

/// The tests that name the goldens that they run.
const TESTS: [&str; 3] = [
    "crates/models/tests/all/decoders.rs",
    "crates/models/tests/all/quantized.rs",
    "crates/models/tests/all/converted.rs",
];
const GOLDENS: &str = "tests/golden/";

/// The list of GGUF's types, and that of quantization methods.
const GGUF_TYPES: &str = "crates/checkpoint/src/quantization/gguf_type.rs";
const METHODS: &str = "crates/checkpoint/src/quantization/method.rs";

/// On which GPU what is listed has been compared with its goldens.
const ON_GPU: &str = "H200";

/// One architecture.
struct Architecture {
    class: &'static str,
    models: &'static str,
    /// What its goldens have switched on.
    checked: &'static str,
    /// As GGUF files call it, where they are read.
    gguf: &'static str,
}

/// What Mamba-2 makes of one group is normed as one, on one rank: published models of these have no more.
const OF_ONE_RANK: [(&str, &str); 2] = [
    ("GraniteMoeHybridForCausalLM", "without Mamba-2"),
    ("BambaForCausalLM", "with groups of Mamba-2"),
];

const fn row(
    class: &'static str,
    models: &'static str,
    checked: &'static str,
    gguf: &'static str,
) -> Architecture {
    Architecture { class, models, checked, gguf }
}

/// In the order of the table.
const ARCHITECTURES: &[Architecture] = &[
    row(
        "LlamaForCausalLM",
        "Llama 2, 3, 3.1, 3.2, 3.3 and what is built like them",
        "llama3, linear and yarn rope scaling, biases",
        "llama",
    ),
    row("MistralForCausalLM", "Mistral 7B and what is built like it", "sliding window", ""),
    row(
        "Ministral3ForCausalLM",
        "Ministral 3",
        "queries that grow with their positions",
        "mistral3",
    ),
    row(
        "Mistral3ForConditionalGeneration",
        "Mistral Small 3.1 and 3.2, Ministral 3; texts only",
        "both spellings of tensors, a head of its own",
        "mistral3",
    ),
    row("Qwen2ForCausalLM", "Qwen2, Qwen2.5", "qkv biases, windows in some layers", "qwen2"),
    row("Qwen3ForCausalLM", "Qwen3 (dense)", "norms on heads of q and k", "qwen3"),
    row(
        "GemmaForCausalLM",
        "Gemma",
        "norms around one, scaled embeddings, GELU by another name",
        "gemma",
    ),
    row(
        "Gemma2ForCausalLM",
        "Gemma 2",
        "soft caps, alternating windows, norms before and after",
        "gemma2",
    ),
    row(
        "Gemma3ForCausalLM",
        "Gemma 3 (text: 270M, 1B)",
        "windowed layers with a rope of their own, norms on heads of q and k",
        "gemma3",
    ),
    row(
        "Gemma3ForConditionalGeneration",
        "Gemma 3 (4B, 12B, 27B); texts only",
        "settings that are left out, stretched global layers",
        "",
    ),
    row(
        "Gemma4ForCausalLM",
        "Gemma 4 without parts for images and sounds; all sizes in GGUF",
        "experts with norms of their own beside a feed-forward, values that are keys",
        "gemma4",
    ),
    row(
        "Gemma4ForConditionalGeneration",
        "Gemma 4 (E2B, E4B, 26B-A4B, 31B); texts only",
        "layers that read the keys of others, vectors of tokens for each layer, wider global heads, part of whose pairs turn",
        "",
    ),
    row(
        "Gemma4UnifiedForConditionalGeneration",
        "Gemma 4 12B; texts only",
        "heads as wide as published, settings by default",
        "",
    ),
    row(
        "PhiForCausalLM",
        "Phi-1, Phi-1.5, Phi-2",
        "attention and feed-forward side by side, partial rotary, a head with a bias",
        "",
    ),
    row(
        "Phi3ForCausalLM",
        "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
        "fused tensors, partial rotary, longrope",
        "phi3",
    ),
    row("GlmForCausalLM", "GLM-4-9B", "interleaved partial rotary, fused tensors, qkv biases", ""),
    row("Glm4ForCausalLM", "GLM-4-0414", "interleaved rope, norms before and after", "glm4"),
    row(
        "GraniteForCausalLM",
        "Granite 3",
        "factors on embeddings, scores, residuals and logits",
        "granite",
    ),
    row(
        "GraniteMoeForCausalLM",
        "Granite 3 (1B-A400M, 3B-A800M), PowerMoE",
        "experts in one tensor, factors",
        "granitemoe",
    ),
    row(
        "GraniteMoeSharedForCausalLM",
        "Granite with shared experts",
        "experts beside a shared one, factors",
        "granitemoe",
    ),
    row(
        "GraniteMoeHybridForCausalLM",
        "Granite 4, with Mamba-2 (H Small, H Tiny, H Micro, ..) or attention alone (Micro, ..)",
        "Mamba-2 in most layers, four fixed factors, experts beside a shared one",
        "granitehybrid",
    ),
    row("Olmo2ForCausalLM", "OLMo 2", "norms after each block, norms over all heads", "olmo2"),
    row(
        "Olmo3ForCausalLM",
        "OLMo 3",
        "windowed layers with a rope of their own, both spellings of ropes",
        "olmo2",
    ),
    row("SmolLM3ForCausalLM", "SmolLM3", "layers without rope, which have windows", "smollm3"),
    row("SeedOssForCausalLM", "Seed-OSS", "qkv biases", "seed_oss"),
    row(
        "Ernie4_5ForCausalLM",
        "ERNIE 4.5 (dense)",
        "interleaved rope, biases everywhere",
        "ernie4_5",
    ),
    row(
        "Ernie4_5_MoeForCausalLM",
        "ERNIE 4.5 (21B-A3B, 300B-A47B)",
        "experts chosen by a softmax and biases beside shared ones, in some layers",
        "ernie4_5-moe",
    ),
    row(
        "Exaone4ForCausalLM",
        "EXAONE 4.0",
        "windowed layers with rope, others without; full layers alone; norms after each block",
        "exaone4",
    ),
    row(
        "StableLmForCausalLM",
        "StableLM 2 (1.6B), StableLM 3B",
        "LayerNorm, partial rotary, attention and feed-forward one after the other and side by side",
        "",
    ),
    row(
        "Starcoder2ForCausalLM",
        "StarCoder2",
        "LayerNorm, biases, a feed-forward without a gate, sliding window",
        "starcoder2",
    ),
    row(
        "GPT2LMHeadModel",
        "GPT-2 and what is built like it",
        "learned positions, transposed tensors, old and new names",
        "",
    ),
    row(
        "GPTBigCodeForCausalLM",
        "StarCoder, SantaCoder and what is built like them",
        "one head of keys for all, and as many as of queries; rows that lie head by head",
        "",
    ),
    row(
        "GPTJForCausalLM",
        "GPT-J 6B",
        "attention and feed-forward side by side, partial rotary of neighbours, a head with a bias",
        "",
    ),
    row(
        "GPTNeoForCausalLM",
        "GPT-Neo (125M to 2.7B), TinyStories",
        "learned positions, windows in some layers, scores that are not scaled",
        "",
    ),
    row(
        "GPTNeoXForCausalLM",
        "GPT-NeoX 20B, Pythia and what is built like them",
        "attention and feed-forward side by side with a norm each, partial rotary, rows that lie head by head",
        "",
    ),
    row(
        "OPTForCausalLM",
        "OPT (125M, 1.3B to 66B)",
        "learned positions behind two others, ReLU",
        "",
    ),
    row(
        "FalconForCausalLM",
        "Falcon 7B, 40B, 180B, Falcon 2 11B",
        "both architectures: one head of keys for all, and several; biases; one norm and two",
        "",
    ),
    row(
        "NemotronForCausalLM",
        "Nemotron-Mini, Minitron, Nemotron-4",
        "LayerNorm stored as the difference from one, squared ReLU, partial rotary",
        "",
    ),
    row("ArceeForCausalLM", "AFM-4.5B", "squared ReLU, biases", "arcee"),
    row("Jais2ForCausalLM", "Jais 2", "squared ReLU, LayerNorm, biases everywhere", ""),
    row("HeliumForCausalLM", "Helium 1", "interleaved rope, qkv biases", ""),
    row(
        "CohereForCausalLM",
        "Command R, Command R+, Aya",
        "attention and feed-forward side by side, norms of each head, scaled logits",
        "command-r",
    ),
    row(
        "Cohere2ForCausalLM",
        "Command R7B, Command A",
        "windowed layers with rope, others without",
        "cohere2",
    ),
    row("MixtralForCausalLM", "Mixtral", "experts, sliding window", "llama"),
    row("OlmoeForCausalLM", "OLMoE", "experts, norms over all heads", "olmoe"),
    row(
        "Qwen2MoeForCausalLM",
        "Qwen1.5-MoE, Qwen2-57B-A14B",
        "experts in some layers, beside one with a score of its own",
        "qwen2moe",
    ),
    row(
        "Qwen3MoeForCausalLM",
        "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder and their like",
        "experts in some layers, shares renormalised or not",
        "qwen3moe",
    ),
    row(
        "Qwen3NextForCausalLM",
        "Qwen3-Next-80B-A3B, Qwen3-Coder-Next",
        "gated delta nets, gated attention, rows that lie head by head, experts in some layers",
        "qwen3next",
    ),
    row(
        "Qwen3_5ForConditionalGeneration",
        "Qwen3.5, dense (0.8B to 27B); texts only",
        "gated delta nets, heads of keys and values of different widths",
        "qwen35",
    ),
    row(
        "Qwen3_5ForCausalLM",
        "Qwen3.5, dense, without the part for images",
        "settings by default",
        "qwen35",
    ),
    row(
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3.5 with experts (35B-A3B, 122B-A10B, 397B-A17B); texts only",
        "one tensor for all experts of a layer",
        "qwen35moe",
    ),
    row(
        "Qwen3_5MoeForCausalLM",
        "Qwen3.5 with experts, without the part for images",
        "a tensor for each expert, a shorter convolution",
        "qwen35moe",
    ),
    row(
        "Glm4MoeForCausalLM",
        "GLM-4.5, GLM-4.5-Air, GLM-4.6",
        "experts chosen by sigmoids and biases beside shared ones, dense layers before them",
        "glm4moe",
    ),
    row(
        "BambaForCausalLM",
        "Bamba 9B",
        "Mamba-2 in most layers, half of each head of the others rotated",
        "granitehybrid",
    ),
    row(
        "NemotronHForCausalLM",
        "Nemotron-H, Nemotron Nano 2, Nemotron 3 Nano",
        "Mamba-2 in most layers, feed-forwards and experts of squared ReLUs without gates",
        "nemotron_h",
    ),
    row(
        "Lfm2ForCausalLM",
        "LFM2 and LFM2.5 (350M to 2.6B)",
        "gated short convolutions, norms on heads of q and k",
        "lfm2",
    ),
    row(
        "Lfm2MoeForCausalLM",
        "LFM2-8B-A1B, LFM2-24B-A2B",
        "gated short convolutions, experts chosen by sigmoids and biases",
        "lfm2moe",
    ),
    row(
        "SolarOpenForCausalLM",
        "Solar Open 100B",
        "experts chosen by sigmoids and biases beside a shared one, qkv biases",
        "",
    ),
    row(
        "Dots1ForCausalLM",
        "dots.llm1",
        "experts chosen by sigmoids and biases beside shared ones, a dense layer, windows in some layers, biases",
        "dots1",
    ),
    row(
        "AfmoeForCausalLM",
        "Trinity Nano, Mini, Large",
        "gated attention, layers without rope, norms before and after, experts chosen by sigmoids and biases",
        "afmoe",
    ),
    row(
        "DeepseekV2ForCausalLM",
        "DeepSeek-V2, V2-Lite, V2.5, DeepSeek-Coder-V2",
        "multi-head latent attention, experts of some groups, yarn rope scaling",
        "deepseek2",
    ),
    row(
        "DeepseekV3ForCausalLM",
        "DeepSeek-V3, V3.1, R1; Kimi K2, Moonlight",
        "multi-head latent attention, experts chosen by sigmoids and biases among those of some groups",
        "deepseek2",
    ),
    row(
        "Glm4MoeLiteForCausalLM",
        "GLM-4.7-Flash",
        "multi-head latent attention, experts chosen by sigmoids and biases",
        "",
    ),
    row(
        "Mistral4ForCausalLM",
        "Mistral Small 4, without the part for images",
        "multi-head latent attention, experts beside a shared one, queries that grow with their positions",
        "",
    ),
    row("YoutuForCausalLM", "Youtu-LLM", "multi-head latent attention, tied embeddings", ""),
    row(
        "MiniCPM3ForCausalLM",
        "MiniCPM3",
        "multi-head latent attention, scaled branches, longrope",
        "",
    ),
    row(
        "MiniMaxM2ForCausalLM",
        "MiniMax-M2",
        "experts chosen by sigmoids and biases, norms over all heads, partial rotary",
        "minimax-m2",
    ),
    row(
        "GptOssForCausalLM",
        "gpt-oss-20b, gpt-oss-120b",
        "sinks, windows in every second layer, bounded gates, biases of experts and routers, yarn rope scaling",
        "gpt-oss",
    ),
];

/// A format of weights: its name, the beginning of its goldens' names, the checkpoints that have it, and what is in memory.
/// `{types}` stands for the names of [`GGUF_TYPES`].
const FORMATS: [(&str, &str, &str, &str); 9] = [
    ("safetensors", "", "F32, F16, BF16; single and sharded", "as stored"),
    ("`awq`", "awq", "AutoAWQ: 4 bits, GEMM layout, zero points", "4-bit codes"),
    (
        "`gptq`",
        "gptq",
        "AutoGPTQ, GPTQModel: 4 and 8 bits, any even group size or -1, with and without act-order, symmetric or not, formats v1 and v2",
        "codes of 4 or 8 bits",
    ),
    (
        "`fp8`",
        "fp8",
        "`quant_method` fp8 (scales per tensor, output or block), compressed-tensors' `float-quantized` and ModelOpt's FP8: e4m3 weights; activations are not rounded",
        "8-bit codes",
    ),
    (
        "compressed-tensors",
        "compressed-tensors",
        "`pack-quantized` (integers of 4 and 8 bits, per group or output, symmetric or not, with and without act-order) and `int-quantized` (8 bits per \
         output); activations are not rounded",
        "codes of 4 or 8 bits",
    ),
    (
        "`squeezellm`",
        "squeezellm",
        "4 bits, with and without the sparse part",
        "4-bit codes and tables, sparse numbers apart",
    ),
    (
        "MXFP4",
        "mxfp4",
        "`quant_method` mxfp4 (gpt-oss): the experts' matrices in e2m1, with a power of two for each 32 of a row",
        "4-bit codes, with scales in bfloat16 (in single precision on a GPU)",
    ),
    (
        "NVFP4",
        "nvfp4",
        "compressed-tensors' `nvfp4-pack-quantized` and ModelOpt's NVFP4: e2m1 weights with an e4m3 scale for each 16 of a row and one number for all; \
         activations are not rounded",
        "4-bit codes, with scales in single precision: 6 bits a weight, on a GPU 8",
    ),
    (
        "GGUF",
        "gguf",
        "{types}; single and split files",
        "codes of 2 to 6 or 8 bits, as the type has them (on a GPU of 4 or 8), with their scales in half or single precision, of K-quants in two levels",
    ),
];

/// Faults of the page, the rows or the goldens.
pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else { return Vec::new() };
    let at_page = |message: String| vec![Finding::new(page, 0, message)];
    let unlisted =
        classes(files).into_iter().find(|class| !ARCHITECTURES.iter().any(|a| a.class == class));
    if let Some(class) = unlisted {
        return at_page(format!("{class} has no row in crates/xtask/src/tidy/models_table.rs"));
    }
    if let Some(message) = other_methods(files) {
        return at_page(message);
    }
    match written(files, &page.text) {
        Ok(text) if text == page.text => Vec::new(),
        Ok(_) => at_page("its tables of models are not those of `cargo xtask docs`".to_owned()),
        Err(message) => at_page(message),
    }
}

/// The page with the tables as they should be.
pub(super) fn written(files: &[SourceFile], page: &str) -> Result<String, String> {
    let parts =
        page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, behind)) = parts else {
        return Err(format!("it has no tables between `{}` and `{}`", BEGIN.trim(), END.trim()));
    };
    Ok(format!("{before}{BEGIN}{}{END}{behind}", tables(files)?))
}

/// Class names of the decoders that are described.
fn classes(files: &[SourceFile]) -> Vec<String> {
    let described = files.iter().filter(|file| {
        file.path.starts_with("crates/checkpoint/src/arch/") && !file.path.ends_with("tests.rs")
    });
    let name =
        |line: &str| Some(line.trim().strip_prefix("name: \"")?.strip_suffix("\",")?.to_owned());
    described.flat_map(|file| file.text.lines().filter_map(name)).collect()
}

/// A folder of tests/golden that a test runs: its name and its architecture.
struct Golden {
    name: String,
    class: &'static str,
}

fn goldens(files: &[SourceFile]) -> Vec<Golden> {
    let runs = |name: &str| {
        let tests = files.iter().filter(|file| TESTS.contains(&file.path.as_str()));
        tests.into_iter().any(|file| file.text.contains(&format!("\"{name}\"")))
    };
    let mut goldens = Vec::new();
    for file in files {
        let Some(path) = file.path.strip_prefix(GOLDENS) else { continue };
        let architecture = match path.split_once('/') {
            Some((name, "config.json")) => {
                let holds = |a: &&Architecture| file.text.contains(&format!("\"{}\"", a.class));
                ARCHITECTURES.iter().find(holds).map(|a| (name, a))
            }
            // The file itself is no text; the script says which architecture it has.
            Some((name, "tokenizer.json")) => {
                let class = gguf_class(files, name).map(|class| format!("{class}For"));
                let is = |a: &&Architecture| class.as_ref().is_some_and(|c| a.class.starts_with(c));
                ARCHITECTURES.iter().find(is).map(|a| (name, a))
            }
            _ => None,
        };
        if let Some((name, architecture)) = architecture.filter(|(name, _)| runs(name)) {
            goldens.push(Golden { name: name.to_owned(), class: architecture.class });
        }
    }
    let class_of = |of: &str| goldens.iter().find(|golden| golden.name == of).map(|g| g.class);
    let converted = converted(files).filter(|(name, _)| runs(name));
    let converted: Vec<Golden> = converted
        .filter_map(|(name, of)| Some(Golden { name: name.to_owned(), class: class_of(of)? }))
        .collect();
    goldens.extend(converted);
    goldens
}

/// Goldens that a converter has written, and the golden of which each is a recipe's other form.
fn converted(files: &[SourceFile]) -> impl Iterator<Item = (&str, &str)> {
    let script = files.iter().find(|file| file.path == "scripts/convert_gguf_goldens.py");
    let recipes = script.into_iter().flat_map(|script| script.text.split("\n    \"").skip(1));
    recipes.filter_map(|recipe| {
        let (name, rest) = recipe.split_once("\": dict(")?;
        Some((name, rest.split_once("of=\"")?.1.split('"').next()?))
    })
}

/// The `cls=".."` of a golden's recipe.
fn gguf_class<'a>(files: &'a [SourceFile], golden: &str) -> Option<&'a str> {
    let script = files.iter().find(|file| file.path == "scripts/make_gguf_goldens.py")?;
    let recipe = script.text.split_once(&format!("\"{golden}\": dict("))?.1;
    recipe.split_once("cls=\"")?.1.split('"').next()
}

/// The names of the types of GGUF's tensors that are computed with.
fn gguf_types(files: &[SourceFile]) -> Vec<&str> {
    let rows = lines_of(files, GGUF_TYPES);
    rows.filter_map(|row| row.split_once(" = (")?.1.split('"').nth(1)).collect()
}

/// The first difference between the rows of formats and the list of quantization methods.
fn other_methods(files: &[SourceFile]) -> Option<String> {
    if !files.iter().any(|file| file.path == METHODS) {
        return None;
    }
    let parts = lines_of(files, METHODS).flat_map(|line| line.split(", "));
    let supported = parts.filter_map(|part| part.trim().strip_prefix("supported: \""));
    // The first word is the method's name, as its goldens have it.
    let names = supported.filter_map(|words| words.split(['"', '\'']).next());
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    let rows = FORMATS.map(|format| format.1);
    let rows: Vec<&str> = rows.into_iter().filter(|row| !["", "gguf"].contains(row)).collect();
    let missing = |name: &&str| !rows.contains(name);
    let stale = |row: &&str| !names.contains(row);
    if let Some(name) = names.iter().copied().find(missing) {
        return Some(format!("{name} has no row in crates/xtask/src/tidy/models_table.rs"));
    }
    let stale = rows.iter().copied().find(stale)?;
    Some(format!("{stale} has a row, and {METHODS} does not say that it is supported"))
}

fn lines_of<'a>(files: &'a [SourceFile], path: &'a str) -> impl Iterator<Item = &'a str> {
    files.iter().filter(move |file| file.path == path).flat_map(|file| file.text.lines())
}

/// Whether a golden is of the format whose goldens begin with `prefix`; of plain safetensors where that is empty.
fn is_of(name: &str, prefix: &str) -> bool {
    let begins = |prefix: &str| name == prefix || name.starts_with(&format!("{prefix}-"));
    match prefix {
        "" => FORMATS.iter().all(|format| format.1.is_empty() || !begins(format.1)),
        prefix => begins(prefix),
    }
}

fn tables(files: &[SourceFile]) -> Result<String, String> {
    let goldens = goldens(files);
    let mut text = String::from(
        "| architecture | models | checked against transformers | quantized goldens | GGUF | tensor-parallel | on a GPU |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for row in ARCHITECTURES {
        let own: Vec<&Golden> = goldens.iter().filter(|golden| golden.class == row.class).collect();
        if !own.iter().any(|golden| is_of(&golden.name, "")) {
            return Err(format!("{} has no golden in {GOLDENS} that a test runs", row.class));
        }
        let quantized: Vec<&str> = FORMATS[1..7]
            .iter()
            .filter(|format| own.iter().any(|golden| is_of(&golden.name, format.1)))
            .map(|format| format.1)
            .collect();
        // Several classes may have one name in GGUF files.
        let of_name = ARCHITECTURES.iter().filter(|other| other.gguf == row.gguf);
        let has_file = |class| {
            goldens.iter().any(|golden| golden.class == class && is_of(&golden.name, "gguf"))
        };
        if of_name.map(|other| other.class).any(has_file) == row.gguf.is_empty() {
            return Err(format!("{} has no golden in a GGUF file that a test runs", row.class));
        }
        let gguf = match row.gguf {
            "" => "no".to_owned(),
            name => format!("`{name}`"),
        };
        let quantized = if quantized.is_empty() { "none".to_owned() } else { quantized.join(", ") };
        let one_rank = OF_ONE_RANK.iter().find(|(class, _)| *class == row.class);
        let parallel = one_rank.map_or("yes", |(_, what)| what);
        text += &format!(
            "| `{}` | {} | {} | {quantized} | {gguf} | {parallel} | {ON_GPU} |\n",
            row.class, row.models, row.checked
        );
    }
    text += "\n| format | checkpoints | in memory | goldens | on a GPU |\n|---|---|---|---|---|\n";
    for (format, prefix, checkpoints, memory) in FORMATS {
        let count = goldens.iter().filter(|golden| is_of(&golden.name, prefix)).count();
        if count == 0 {
            return Err(format!("{format} has no golden in {GOLDENS} that a test runs"));
        }
        let checkpoints = checkpoints.replace("{types}", &gguf_types(files).join(", "));
        text += &format!("| {format} | {checkpoints} | {memory} | {count} | {ON_GPU} |\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    #[test]
    fn a_table_that_differs_and_an_architecture_without_a_row_are_found() {
        let page = format!("a\n{BEGIN}| old |\n{END}b\n");
        let mut files = sample(PAGE, &page);
        let message = |files: &[SourceFile]| {
            findings(files).iter().map(Finding::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            message(&files),
            ["docs/models.md:0: LlamaForCausalLM has no golden in tests/golden/ that a test runs"]
        );
        files.extend(sample("crates/checkpoint/src/arch/x.rs", "    name: \"NewForCausalLM\",\n"));
        let found = message(&files);
        assert!(found[0].contains("NewForCausalLM has no row"), "{found:?}");
    }

    #[test]
    fn names_of_types_and_methods_are_read_from_their_lists() {
        let types = "    /// Four bits.\n    Q4K = (12, \"Q4_K\", 256, 144),\n    F32 = (0, \"F32\", 1, 4),\n";
        assert_eq!(gguf_types(&sample(GGUF_TYPES, types)), ["Q4_K", "F32"]);
        let rows = FORMATS.map(|format| format.1);
        let rows = rows.into_iter().filter(|row| !["", "gguf"].contains(row));
        let listed: Vec<String> = rows
            .map(|row| format!("    Row {{ method: M, supported: \"{row}\", listed: L }},\n"))
            .collect();
        let found = |text: &str| other_methods(&sample(METHODS, text));
        assert_eq!(found(&listed.concat()), None);
        let more = format!("{}        supported: \"new's integers\",\n", listed.concat());
        assert!(found(&more).is_some_and(|message| message.starts_with("new has no row in ")));
        let fewer = listed[1..].concat();
        assert!(found(&fewer).is_some_and(|message| message.starts_with("awq has a row, and ")));
    }

    #[test]
    fn goldens_belong_to_the_format_that_their_name_begins_with() {
        assert!(is_of("gptq-8bit", "gptq") && is_of("gptq", "gptq") && !is_of("gptq", "gguf"));
        assert!(is_of("llama-yarn", "") && !is_of("fp8-block", ""));
    }
}
