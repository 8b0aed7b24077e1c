//! The rate of a vision tower beside that of its products alone, in pairs: `cargo bench -p candlepower-models --bench tower`.
//!
//! The tower has the shape of SigLIP-so400m with fewer layers, random bf16 weights, and a picture of 896 x 896 pixels.
//! `RAYON_NUM_THREADS` sets the number of threads. `scripts/bench_tower.py` runs the same tower with transformers.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{fs, hint::black_box, path::PathBuf, time::Instant};

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{Checkpoint, CheckpointFiles, VisionSpec};
use candlepower_kernels::{Weight, WeightRows, linear};
use candlepower_media::{Deadline, Detail, Limits, Processed};
use candlepower_models::{ImageEncoder, LoadDtype, LoadFormat, LoadOptions};
use candlepower_testing::goldens::{folder, root};
use serde_json::{Value, json};

const LAYERS: usize = 4;
const SIDE: u32 = 896;
const ROWS: usize = 512;
const PAIRS: usize = 7;

fn main() {
    // `cargo test --benches` only checks that it builds.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let folder = siglip();
    let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder.clone())).unwrap();
    let spec = checkpoint.vision().unwrap();
    let options = LoadOptions {
        device: Device::Cpu,
        dtype: LoadDtype::Bf16,
        load_format: LoadFormat::Dummy,
        max_model_len: None,
    };
    let encoder = ImageEncoder::load(&checkpoint, &options).unwrap().unwrap();
    let image = image(&checkpoint);
    fs::remove_dir_all(folder).unwrap();
    let products = products(spec);
    let mut ratios = Vec::new();
    for _ in 0..PAIRS {
        let (seconds, longest) = tower(&encoder, spec, &image);
        let rate = work(spec) / seconds;
        let of_products = product_rate(&products);
        ratios.push(rate / of_products);
        println!(
            "tower {seconds:.3} s for {LAYERS} layers, longest piece {:.0} ms, {:.1} GMAC/s; products {:.1} GMAC/s; ratio {:.3}",
            longest * 1e3,
            rate / 1e9,
            of_products / 1e9,
            rate / of_products
        );
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.3}", ratios[PAIRS / 2]);
}

/// A folder with the settings of the tower.
fn siglip() -> PathBuf {
    let from = folder("vision_gemma3");
    let to = std::env::temp_dir().join(format!("candlepower-tower-{}", std::process::id()));
    fs::create_dir_all(&to).unwrap();
    for name in ["preprocessor_config.json", "processor_config.json"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let mut config: Value =
        serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    config["mm_tokens_per_image"] = 256.into();
    config["vision_config"] = json!({
        "hidden_size": 1152, "image_size": SIDE, "intermediate_size": 4304,
        "model_type": "siglip_vision_model", "num_attention_heads": 16,
        "num_hidden_layers": LAYERS, "patch_size": 14, "vision_use_head": false,
    });
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    let mut processor: Value =
        serde_json::from_slice(&fs::read(to.join("preprocessor_config.json")).unwrap()).unwrap();
    processor["size"] = json!({"height": SIDE, "width": SIDE});
    fs::write(to.join("preprocessor_config.json"), processor.to_string()).unwrap();
    to
}

fn image(checkpoint: &Checkpoint) -> Processed {
    let limits = Limits::default();
    let bytes = fs::read(root().join("vision_pictures/square.png")).unwrap();
    let picture = candlepower_media::decode(&bytes, &limits, &Deadline::default()).unwrap();
    let processor = checkpoint.image_processor().unwrap().unwrap();
    let image = processor.process(&picture, Detail::Full, &limits).unwrap();
    assert_eq!(image.pixels().width(), SIDE);
    image
}

/// Seconds of a run, and of its longest piece.
fn tower(encoder: &ImageEncoder, spec: &VisionSpec, image: &Processed) -> (f64, f64) {
    let began = Instant::now();
    let mut run = encoder.begin(image).unwrap();
    let mut longest = 0_f64;
    for _ in 0..spec.num_pieces(SIDE, SIDE) {
        let piece = Instant::now();
        encoder.advance(&mut run).unwrap();
        longest = longest.max(piece.elapsed().as_secs_f64());
    }
    black_box(run.embeddings().unwrap());
    (began.elapsed().as_secs_f64(), longest)
}

/// Multiply-adds of the layers and of the embedding of patches.
fn work(spec: &VisionSpec) -> f64 {
    let (rows, columns) = spec.patch_grid(SIDE, SIDE);
    let (patches, width) = ((rows * columns) as f64, spec.width as f64);
    let layer = 4.0 * width * width + 2.0 * width * spec.layer.inner as f64;
    let of_layers = spec.layers as f64 * (layer + 2.0 * patches * width);
    patches * (of_layers + spec.patches.values() as f64 * width)
}

/// The matrices of a layer.
fn products(spec: &VisionSpec) -> Vec<Weight> {
    let (width, inner) = (spec.width, spec.layer.inner);
    let shapes = [(3 * width, width), (width, width), (inner, width), (width, inner)];
    let of_shape = |(n, k): (usize, usize)| {
        let values = (0..n * k).map(|i| (i % 101) as f32 / 50.0 - 1.0);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        let mut builder = Weight::builder(n, k, DType::BF16).unwrap();
        builder.write_rows(0, WeightRows { dtype: DType::F32, bytes: &bytes }).unwrap();
        builder.finish().unwrap()
    };
    shapes.map(of_shape).into()
}

fn product_rate(weights: &[Weight]) -> f64 {
    let inputs: Vec<Tensor> = weights
        .iter()
        .map(|weight| Tensor::ones((ROWS, weight.k()), DType::F32, &Device::Cpu).unwrap())
        .collect();
    let work: f64 = weights.iter().map(|weight| (ROWS * weight.n() * weight.k()) as f64).sum();
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed().as_secs_f64() < 1.0 {
        for (weight, x) in weights.iter().zip(&inputs) {
            black_box(linear(x, weight, None).unwrap());
        }
        rounds += 1;
    }
    work * f64::from(rounds) / began.elapsed().as_secs_f64()
}
