//! The tables of architectures and formats in `docs/models.md`. They are written from the rows here and from the
//! goldens that the tests run, so that every claim in them is tested.

use super::Finding;
use super::files::SourceFile;

mod formats;

use formats::FORMATS;

pub(super) const PAGE: &str = "docs/models.md";
const BEGIN: &str = "<!-- models: written by `cargo xtask docs` -->\n";
const END: &str = "<!-- models: end -->\n";

/// The tests that name the goldens they run.
const TESTS: [&str; 4] = [
    "crates/testing/src/goldens/decoders.rs",
    VISION_TESTS,
    "crates/models/tests/all/quantized.rs",
    "crates/models/tests/all/converted.rs",
];
const GOLDENS: &str = "tests/golden/";
/// The list of goldens with images, which the tests run.
const VISION_TESTS: &str = "crates/testing/src/goldens/vision.rs";
/// The script that makes the goldens that are GGUF files.
const GGUF_SCRIPT: &str = "scripts/goldens/gguf_models.py";

/// The list of GGUF's types, and that of quantization methods.
const GGUF_TYPES: &str = "crates/checkpoint/src/quantization/gguf_type.rs";
const METHODS: &str = "crates/checkpoint/src/quantization/method.rs";

/// One architecture.
struct Architecture {
    class: &'static str,
    models: &'static str,
    /// Features that its goldens enable.
    checked: &'static str,
    /// The architecture's name in GGUF files, if those are supported.
    gguf: &'static str,
}

/// Conditions of tensor parallelism. The norm of a Mamba-2 group needs all its channels on one rank, and the published
/// models of these classes have a single group.
const OF_ONE_RANK: [(&str, &str); 2] = [
    ("GraniteMoeHybridForCausalLM", "only without Mamba-2 layers"),
    ("BambaForCausalLM", "only if Mamba-2 has several groups"),
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
        "llama3, linear and YaRN scaling of RoPE, biases",
        "llama",
    ),
    row("MistralForCausalLM", "Mistral 7B and what is built like it", "sliding window", ""),
    row("Ministral3ForCausalLM", "Ministral 3", "queries scaled by position", "mistral3"),
    row(
        "Mistral3ForConditionalGeneration",
        "Mistral Small 3.1 and 3.2, Ministral 3",
        "both spellings of tensor names, untied head",
        "mistral3",
    ),
    row("Qwen2ForCausalLM", "Qwen2, Qwen2.5", "qkv biases, sliding window in some layers", "qwen2"),
    row("Qwen3ForCausalLM", "Qwen3 (dense)", "QK norm per head", "qwen3"),
    row(
        "GemmaForCausalLM",
        "Gemma",
        "norm weights around one, scaled embeddings, GELU by another name",
        "gemma",
    ),
    row(
        "Gemma2ForCausalLM",
        "Gemma 2",
        "softcaps, alternating sliding windows, pre- and post-norms",
        "gemma2",
    ),
    row(
        "Gemma3ForCausalLM",
        "Gemma 3 (text: 270M, 1B)",
        "separate RoPE for sliding-window layers, QK norm per head",
        "gemma3",
    ),
    row(
        "Gemma3ForConditionalGeneration",
        "Gemma 3 (4B, 12B, 27B)",
        "default settings, scaled RoPE in global layers",
        "",
    ),
    row(
        "Gemma4ForCausalLM",
        "Gemma 4 without image and sound encoders; all sizes in GGUF",
        "experts and a dense feed-forward with separate norms, values equal to keys",
        "gemma4",
    ),
    row(
        "Gemma4ForConditionalGeneration",
        "Gemma 4 (E2B, E4B, 26B-A4B, 31B); texts only",
        "KV sharing across layers, per-layer embeddings, larger global head_dim, partial rotary",
        "",
    ),
    row(
        "Gemma4UnifiedForConditionalGeneration",
        "Gemma 4 12B; texts only",
        "published head widths, default settings",
        "",
    ),
    row(
        "PhiForCausalLM",
        "Phi-1, Phi-1.5, Phi-2",
        "parallel attention and feed-forward, partial rotary, output head with a bias",
        "",
    ),
    row(
        "Phi3ForCausalLM",
        "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
        "fused tensors, partial rotary, longrope",
        "phi3",
    ),
    row("GlmForCausalLM", "GLM-4-9B", "interleaved partial rotary, fused tensors, qkv biases", ""),
    row("Glm4ForCausalLM", "GLM-4-0414", "interleaved RoPE, pre- and post-norms", "glm4"),
    row(
        "GraniteForCausalLM",
        "Granite 3",
        "multipliers of embeddings, scores, residuals and logits",
        "granite",
    ),
    row(
        "GraniteMoeForCausalLM",
        "Granite 3 (1B-A400M, 3B-A800M), PowerMoE",
        "experts in one tensor, multipliers",
        "granitemoe",
    ),
    row(
        "GraniteMoeSharedForCausalLM",
        "Granite with shared experts",
        "shared expert, multipliers",
        "granitemoe",
    ),
    row(
        "GraniteMoeHybridForCausalLM",
        "Granite 4, with Mamba-2 (H Small, H Tiny, H Micro, ..) or attention alone (Micro, ..)",
        "Mamba-2 in most layers, four multipliers, shared expert",
        "granitehybrid",
    ),
    row("Olmo2ForCausalLM", "OLMo 2", "post-norms, QK norm over all heads", "olmo2"),
    row(
        "Olmo3ForCausalLM",
        "OLMo 3",
        "separate RoPE for sliding-window layers, both spellings of RoPE settings",
        "olmo2",
    ),
    row("SmolLM3ForCausalLM", "SmolLM3", "layers without RoPE, sliding windows", "smollm3"),
    row("SeedOssForCausalLM", "Seed-OSS", "qkv biases", "seed_oss"),
    row(
        "Ernie4_5ForCausalLM",
        "ERNIE 4.5 (dense)",
        "interleaved RoPE, biases everywhere",
        "ernie4_5",
    ),
    row(
        "Ernie4_5_MoeForCausalLM",
        "ERNIE 4.5 (21B-A3B, 300B-A47B)",
        "softmax routing with biases, shared experts, MoE in some layers",
        "ernie4_5-moe",
    ),
    row(
        "Exaone4ForCausalLM",
        "EXAONE 4.0",
        "RoPE in sliding-window layers only, full attention alone, post-norms",
        "exaone4",
    ),
    row(
        "StableLmForCausalLM",
        "StableLM 2 (1.6B), StableLM 3B",
        "LayerNorm, partial rotary, sequential and parallel attention and feed-forward",
        "",
    ),
    row(
        "Starcoder2ForCausalLM",
        "StarCoder2",
        "LayerNorm, biases, feed-forward without a gate, sliding window",
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
        "MQA and MHA, qkv rows stored head by head",
        "",
    ),
    row(
        "GPTJForCausalLM",
        "GPT-J 6B",
        "parallel attention and feed-forward, interleaved partial rotary, output head with a bias",
        "",
    ),
    row(
        "GPTNeoForCausalLM",
        "GPT-Neo (125M to 2.7B), TinyStories",
        "learned positions, sliding window in some layers, unscaled scores",
        "",
    ),
    row(
        "GPTNeoXForCausalLM",
        "GPT-NeoX 20B, Pythia and what is built like them",
        "parallel attention and feed-forward with separate norms, partial rotary, qkv rows stored head by head",
        "",
    ),
    row(
        "OPTForCausalLM",
        "OPT (125M, 1.3B to 66B)",
        "learned positions with an offset of two, ReLU",
        "",
    ),
    row(
        "FalconForCausalLM",
        "Falcon 7B, 40B, 180B, Falcon 2 11B",
        "MQA and GQA, biases, one norm and two",
        "",
    ),
    row(
        "NemotronForCausalLM",
        "Nemotron-Mini, Minitron, Nemotron-4",
        "LayerNorm weights around one, squared ReLU, partial rotary",
        "",
    ),
    row("ArceeForCausalLM", "AFM-4.5B", "squared ReLU, biases", "arcee"),
    row("Jais2ForCausalLM", "Jais 2", "squared ReLU, LayerNorm, biases everywhere", ""),
    row("HeliumForCausalLM", "Helium 1", "interleaved RoPE, qkv biases", ""),
    row(
        "CohereForCausalLM",
        "Command R, Command R+, Aya",
        "parallel attention and feed-forward, QK norm per head, scaled logits",
        "command-r",
    ),
    row(
        "Cohere2ForCausalLM",
        "Command R7B, Command A",
        "RoPE in sliding-window layers only",
        "cohere2",
    ),
    row("MixtralForCausalLM", "Mixtral", "experts, sliding window", "llama"),
    row("OlmoeForCausalLM", "OLMoE", "experts, QK norm over all heads", "olmoe"),
    row(
        "Qwen2MoeForCausalLM",
        "Qwen1.5-MoE, Qwen2-57B-A14B",
        "MoE in some layers, gated shared expert",
        "qwen2moe",
    ),
    row(
        "Qwen3MoeForCausalLM",
        "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder and their like",
        "MoE in some layers, expert weights renormalized or not",
        "qwen3moe",
    ),
    row(
        "Qwen3VLForConditionalGeneration",
        "Qwen3-VL, dense (2B, 4B, 8B, 32B)",
        "rotation by frame, row and column, features of images added behind layers",
        "",
    ),
    row(
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3-VL with experts (30B-A3B, 235B-A22B)",
        "one transposed tensor for all experts of a layer, MoE in some layers",
        "",
    ),
    row(
        "Qwen3NextForCausalLM",
        "Qwen3-Next-80B-A3B, Qwen3-Coder-Next",
        "gated delta nets, gated attention, rows stored head by head, MoE in some layers",
        "qwen3next",
    ),
    row(
        "Qwen3_5ForConditionalGeneration",
        "Qwen3.5, dense (0.8B to 27B); Qwen3.6 and Qwen3.8, which have the same class",
        "gated delta nets, key and value heads of different widths",
        "qwen35",
    ),
    row(
        "Qwen3_5ForCausalLM",
        "Qwen3.5, dense, without the image encoder",
        "default settings",
        "qwen35",
    ),
    row(
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3.5 with experts (35B-A3B, 122B-A10B, 397B-A17B); Qwen3.6 and Qwen3.8, which have the same class",
        "one tensor for all experts of a layer",
        "qwen35moe",
    ),
    row(
        "Qwen3_5MoeForCausalLM",
        "Qwen3.5 with experts, without the image encoder",
        "a tensor for each expert, a shorter convolution",
        "qwen35moe",
    ),
    row(
        "Glm4MoeForCausalLM",
        "GLM-4.5, GLM-4.5-Air, GLM-4.6",
        "sigmoid routing with biases, shared experts, dense first layers",
        "glm4moe",
    ),
    row(
        "BambaForCausalLM",
        "Bamba 9B",
        "Mamba-2 in most layers, partial rotary in the others",
        "granitehybrid",
    ),
    row(
        "NemotronHForCausalLM",
        "Nemotron-H, Nemotron Nano 2, Nemotron 3 Nano",
        "Mamba-2 in most layers, squared ReLU without gates in feed-forwards and experts",
        "nemotron_h",
    ),
    row(
        "Lfm2ForCausalLM",
        "LFM2 and LFM2.5 (350M to 2.6B)",
        "gated short convolutions, QK norm per head",
        "lfm2",
    ),
    row(
        "Lfm2MoeForCausalLM",
        "LFM2-8B-A1B, LFM2-24B-A2B",
        "gated short convolutions, sigmoid routing with biases",
        "lfm2moe",
    ),
    row(
        "SolarOpenForCausalLM",
        "Solar Open 100B",
        "sigmoid routing with biases, shared expert, qkv biases",
        "",
    ),
    row(
        "Dots1ForCausalLM",
        "dots.llm1",
        "sigmoid routing with biases, shared experts, a dense layer, sliding window in some layers, biases",
        "dots1",
    ),
    row(
        "AfmoeForCausalLM",
        "Trinity Nano, Mini, Large",
        "gated attention, layers without RoPE, pre- and post-norms, sigmoid routing with biases",
        "afmoe",
    ),
    row(
        "DeepseekV2ForCausalLM",
        "DeepSeek-V2, V2-Lite, V2.5, DeepSeek-Coder-V2",
        "MLA, group-limited routing, YaRN",
        "deepseek2",
    ),
    row(
        "DeepseekV3ForCausalLM",
        "DeepSeek-V3, V3.1, R1; Kimi K2, Moonlight",
        "MLA, group-limited sigmoid routing with biases",
        "deepseek2",
    ),
    row("Glm4MoeLiteForCausalLM", "GLM-4.7-Flash", "MLA, sigmoid routing with biases", ""),
    row(
        "Mistral4ForCausalLM",
        "Mistral Small 4, without the image encoder",
        "MLA, shared expert, queries scaled by position",
        "",
    ),
    row("YoutuForCausalLM", "Youtu-LLM", "MLA, tied embeddings", ""),
    row("MiniCPM3ForCausalLM", "MiniCPM3", "MLA, scaled branches, longrope", ""),
    row(
        "MiniMaxM2ForCausalLM",
        "MiniMax-M2",
        "sigmoid routing with biases, QK norm over all heads, partial rotary",
        "minimax-m2",
    ),
    row(
        "GptOssForCausalLM",
        "gpt-oss-20b, gpt-oss-120b",
        "attention sinks, sliding window in every second layer, clamped gates, biases of experts and routers, YaRN",
        "gpt-oss",
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

/// The page with the tables that it should have.
pub(super) fn written(files: &[SourceFile], page: &str) -> Result<String, String> {
    let parts =
        page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, behind)) = parts else {
        return Err(format!("it has no tables between `{}` and `{}`", BEGIN.trim(), END.trim()));
    };
    Ok(format!("{before}{BEGIN}{}{END}{behind}", tables(files)?))
}

/// Class names of the decoders that `checkpoint` describes.
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
        let Some((name, "config.json")) = path.split_once('/') else { continue };
        // The quotes keep a class from matching within a longer name.
        let holds = |a: &&Architecture| file.text.contains(&format!("\"{}\"", a.class));
        if let Some(architecture) = ARCHITECTURES.iter().find(holds).filter(|_| runs(name)) {
            goldens.push(Golden { name: name.to_owned(), class: architecture.class });
        }
    }
    let of_gguf: Vec<Golden> = gguf_recipes(files)
        .filter(|recipe| runs(recipe.name))
        .filter_map(|recipe| {
            let mut class = goldens.iter().find(|golden| golden.name == recipe.of)?.class;
            if recipe.is_text {
                let text_class = class.replace("ForConditionalGeneration", "ForCausalLM");
                class = ARCHITECTURES.iter().find(|a| a.class == text_class)?.class;
            }
            Some(Golden { name: recipe.name.to_owned(), class })
        })
        .collect();
    goldens.extend(of_gguf);
    goldens
}

/// The recipe of a golden that is a GGUF file.
struct GgufRecipe<'a> {
    name: &'a str,
    /// The golden whose recipe it varies.
    of: &'a str,
    /// Whether it is the text part alone of a model for text and images.
    is_text: bool,
}

/// GGUF files are not text, so their architectures are read from the script that makes them.
fn gguf_recipes(files: &[SourceFile]) -> impl Iterator<Item = GgufRecipe<'_>> {
    let script = files.iter().find(|file| file.path == GGUF_SCRIPT);
    // Recipes are entries of dictionaries at the top level, which are indented by four spaces.
    let recipes = script.into_iter().flat_map(|script| script.text.split("\n    \"").skip(1));
    recipes.filter_map(|recipe| {
        let (name, rest) = recipe.split_once("\": dict(")?;
        let of = rest.split_once("of=\"")?.1.split('"').next()?;
        Some(GgufRecipe { name, of, is_text: rest.contains("text=True") })
    })
}

/// The names of the supported types of GGUF tensors.
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
    // The first word is the method's name, as in the names of its goldens.
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

/// Whether the tests run a golden of this class with images.
fn takes_images(files: &[SourceFile], class: &str) -> bool {
    let tests: String = lines_of(files, VISION_TESTS).collect();
    let quoted = format!("\"{class}\"");
    files.iter().any(|file| {
        let folder =
            file.path.strip_prefix(GOLDENS).and_then(|path| path.strip_suffix("/config.json"));
        folder.is_some_and(|name| {
            tests.contains(&format!("\"{name}\"")) && file.text.contains(&quoted)
        })
    })
}

/// Whether a golden has the format whose goldens begin with `prefix`. An empty prefix means plain safetensors.
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
        "| architecture | models | compared with transformers | quantized goldens | GGUF | images |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in ARCHITECTURES {
        let own: Vec<&Golden> = goldens.iter().filter(|golden| golden.class == row.class).collect();
        if !own.iter().any(|golden| is_of(&golden.name, "")) {
            return Err(format!("{} has no golden in {GOLDENS} that a test runs", row.class));
        }
        let quantized: Vec<&str> = FORMATS
            .iter()
            .filter(|format| !["", "gguf"].contains(&format.1))
            .filter(|format| own.iter().any(|golden| is_of(&golden.name, format.1)))
            .map(|format| format.1)
            .collect();
        // Several classes may share one name in GGUF files.
        let of_name = ARCHITECTURES.iter().filter(|other| other.gguf == row.gguf);
        let has_file = |class| {
            goldens.iter().any(|golden| golden.class == class && is_of(&golden.name, "gguf"))
        };
        // A name without a file is a fault, and so is a file without a name.
        if of_name.map(|other| other.class).any(has_file) == row.gguf.is_empty() {
            return Err(format!("{} has no golden in a GGUF file that a test runs", row.class));
        }
        let gguf = match row.gguf {
            "" => "no".to_owned(),
            name => format!("`{name}`"),
        };
        let images = if takes_images(files, row.class) { "exact on random weights" } else { "no" };
        let quantized = if quantized.is_empty() { "none".to_owned() } else { quantized.join(", ") };
        text += &format!(
            "| `{}` | {} | {} | {quantized} | {gguf} | {images} |\n",
            row.class, row.models, row.checked
        );
    }
    let sharded = OF_ONE_RANK.map(|(class, when)| format!("`{class}` {when}"));
    text += &format!("\nAll run over several ranks, but {}.\n", sharded.join(", and "));
    text += "\n| format | checkpoints | bits in memory | goldens |\n|---|---|---|---|\n";
    for (format, prefix, checkpoints, memory) in FORMATS {
        let count = goldens.iter().filter(|golden| is_of(&golden.name, prefix)).count();
        if count == 0 {
            return Err(format!("{format} has no golden in {GOLDENS} that a test runs"));
        }
        let checkpoints = checkpoints.replace("{types}", &gguf_types(files).join(", "));
        text += &format!("| {format} | {checkpoints} | {memory} | {count} |\n");
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
    fn architectures_of_gguf_files_are_those_of_the_recipes_that_they_vary() {
        let script = "PACKED = {\n    \"gguf-a\": dict(\n        of=\"llama\",\n    ),\n    \
                      \"gguf-b\": dict(of=\"gemma4\", text=True),\n}\n";
        let mut files = sample(GGUF_SCRIPT, script);
        for (name, class) in
            [("llama", "LlamaForCausalLM"), ("gemma4", "Gemma4ForConditionalGeneration")]
        {
            files
                .extend(sample(&format!("{GOLDENS}{name}/config.json"), &format!("[\"{class}\"]")));
        }
        files.extend(sample(TESTS[0], r#"["llama", "gemma4", "gguf-a", "gguf-b"]"#));
        let found: Vec<(String, &str)> =
            goldens(&files).into_iter().map(|golden| (golden.name, golden.class)).collect();
        let expected = [
            ("llama", "LlamaForCausalLM"),
            ("gemma4", "Gemma4ForConditionalGeneration"),
            ("gguf-a", "LlamaForCausalLM"),
            ("gguf-b", "Gemma4ForCausalLM"),
        ];
        assert_eq!(found, expected.map(|(name, class)| (name.to_owned(), class)));
    }

    #[test]
    fn goldens_belong_to_the_format_that_their_name_begins_with() {
        assert!(is_of("gptq-8bit", "gptq") && is_of("gptq", "gptq") && !is_of("gptq", "gguf"));
        assert!(is_of("llama-yarn", "") && !is_of("fp8-block", ""));
    }
}
