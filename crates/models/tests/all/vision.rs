//! Vision towers against what transformers computed from the same files and pictures.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use candle_core::{Device, Tensor};
use candlepower_checkpoint::{Checkpoint, CheckpointFiles, Dtype, PatchPositions, VisionSpec};
use candlepower_media::{Deadline, Detail, Limits, Processed};
use candlepower_models::{
    ForwardInput, GivenRows, ImageEncoder, ImageRun, LoadDtype, LoadFormat, LoadOptions, load,
};
use candlepower_testing::goldens::{VISION, VisionCase, VisionGolden, folder, root};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::golden::{self, TOLERANCE, options};

const QWEN: [&str; 4] =
    ["vision_qwen3_vl", "vision_qwen3_vl_moe", "vision_qwen3_5", "vision_qwen3_5_moe"];

fn checkpoint(name: &str) -> Checkpoint {
    opened(folder(name))
}

fn opened(folder: PathBuf) -> Checkpoint {
    let tokenizer = fs::read(folder.join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let id_of = |text: &str| {
        let token = added.iter().find(|token| token["content"] == text)?;
        token["id"].as_u64().map(|id| id as u32)
    };
    let mut checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder)).unwrap();
    checkpoint.set_image_tokens(&id_of).unwrap();
    checkpoint
}

fn cases(name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder(name).join("cases.json")).unwrap()).unwrap()
}

/// A picture of the goldens as a model's processor makes it.
fn processed(checkpoint: &Checkpoint, picture: &str) -> Processed {
    let file = root().join("vision_pictures").join(format!("{picture}.png"));
    let limits = Limits::default();
    let bytes = fs::read(file).unwrap();
    let picture = candlepower_media::decode(&bytes, &limits, &Deadline::default()).unwrap();
    let processor = checkpoint.image_processor().unwrap().unwrap();
    processor.process(&picture, Detail::Full, &limits).unwrap()
}

fn encoder(checkpoint: &Checkpoint, options: &LoadOptions) -> ImageEncoder {
    ImageEncoder::load(checkpoint, options).unwrap().unwrap()
}

fn num_pieces(spec: &VisionSpec, image: &Processed) -> u32 {
    spec.num_pieces(image.pixels().width(), image.pixels().height())
}

/// All pieces of one picture.
fn run(encoder: &ImageEncoder, spec: &VisionSpec, image: &Processed) -> ImageRun {
    let mut run = encoder.begin(image).unwrap();
    for _ in 0..num_pieces(spec, image) {
        assert!(run.embeddings().is_none());
        encoder.advance(&mut run).unwrap();
    }
    assert!(encoder.advance(&mut run).is_err(), "no piece is left");
    run
}

fn embeddings(encoder: &ImageEncoder, spec: &VisionSpec, image: &Processed) -> Vec<Vec<f32>> {
    run(encoder, spec, image).embeddings().unwrap().to_vec2().unwrap()
}

/// Compares values with a tensor of a golden.
fn assert_near(found: &[f32], file: &SafeTensors<'_>, tensor: &str, golden: &str) {
    assert_within(TOLERANCE, found, file, tensor, golden);
}

fn assert_within(
    tolerance: f32,
    found: &[f32],
    file: &SafeTensors<'_>,
    tensor: &str,
    golden: &str,
) {
    let expected = file.tensor(tensor).unwrap();
    let expected = expected.data().chunks_exact(4);
    let expected: Vec<f32> = expected.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(found.len(), expected.len(), "{golden} {tensor}");
    for (found, expected) in found.iter().zip(&expected) {
        let near = (found - expected).abs() <= tolerance;
        assert!(near, "{golden} {tensor}: {found} is not {expected}");
    }
}

fn names(cases: &Value, key: &str) -> Vec<String> {
    cases[key].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn embeddings_of_all_pictures_are_those_of_transformers() {
    for golden in VISION.iter().copied() {
        let checkpoint = checkpoint(golden);
        let encoder = encoder(&checkpoint, &options());
        let bytes = fs::read(folder(golden).join("golden.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for name in names(&cases(golden), "pictures") {
            let image = processed(&checkpoint, &name);
            let found = embeddings(&encoder, checkpoint.vision().unwrap(), &image);
            let tensor = format!("{name}.embeddings");
            let shape = [found.len(), found[0].len()];
            assert_eq!(file.tensor(&tensor).unwrap().shape(), shape, "{golden} {name}");
            assert_near(&found.concat(), &file, &tensor, golden);
        }
    }
}

/// Features that are added behind the decoder's first layers, a level for each of two layers of the tower.
/// The input of one step over the prompt of a case, with the embeddings of its pictures.
fn input(case: &VisionCase, spec: &VisionSpec, runs: &HashMap<String, ImageRun>) -> ForwardInput {
    let mut input = golden::whole(&case.input_ids);
    for (picture, start, len) in &case.images {
        let run = &runs[picture];
        let tokens = *start..start + len;
        let rows = tokens.clone().filter(|row| case.input_ids[*row] == spec.tokens.placeholder);
        for (index, first_row) in rows.enumerate() {
            let row = |all: &Tensor| all.narrow(0, index, 1).unwrap();
            let rows = row(run.embeddings().unwrap());
            let deepstack = run.deepstack().iter().map(row).collect();
            input.given.push(GivenRows { first_row, rows, deepstack });
        }
        if spec.both_ways {
            input.attention.mutual.resize(1, Vec::new());
            input.attention.mutual[0].push(tokens);
        }
    }
    if let Some([frames, rows, columns]) = &case.position_ids {
        let tokens = frames.iter().zip(rows).zip(columns);
        let places = tokens.flat_map(|((frame, row), column)| [*frame, *row, *column]).collect();
        let places = Tensor::from_vec(places, (frames.len(), 3), &Device::Cpu).unwrap();
        input.rope_positions = Some(places);
    }
    input
}

#[test]
fn logits_of_every_position_are_those_of_transformers() {
    for golden in VISION.iter().copied() {
        let checkpoint = checkpoint(golden);
        let spec = checkpoint.vision().unwrap();
        let encoder = encoder(&checkpoint, &options());
        let model = golden::model(golden);
        // transformers' logits of Qwen3.5 in float32 differ from its own in float64 by up to 3.5e-4.
        let tolerance = match golden.starts_with("vision_qwen3_5") {
            true => 4.0 * TOLERANCE,
            false => TOLERANCE,
        };
        let bytes = fs::read(folder(golden).join("golden.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let VisionGolden { sampled_ids, cases } = VisionGolden::read(golden);
        let mut runs = HashMap::new();
        for (name, case) in &cases {
            for (picture, ..) in &case.images {
                let of_picture = || run(&encoder, spec, &processed(&checkpoint, picture));
                runs.entry(picture.clone()).or_insert_with(of_picture);
            }
            let logits = golden::run(&model, &golden::cache(&model), input(case, spec, &runs));
            assert_eq!(logits.len(), case.input_ids.len());
            let sampled = |row: &Vec<f32>| -> Vec<f32> {
                sampled_ids.iter().map(|id| row[*id as usize]).collect()
            };
            let sampled: Vec<f32> = logits.iter().flat_map(sampled).collect();
            let near = |found: &[f32], tensor: &str| {
                assert_within(tolerance, found, &file, &format!("{name}.{tensor}"), golden);
            };
            near(&sampled, "logits");
            near(logits.last().unwrap(), "last_logits");
        }
    }
}

#[test]
fn deepstack_levels_are_those_of_transformers() {
    for golden in QWEN {
        let checkpoint = checkpoint(golden);
        let spec = checkpoint.vision().unwrap();
        let encoder = encoder(&checkpoint, &options());
        let run = run(&encoder, spec, &processed(&checkpoint, "wide"));
        let bytes = fs::read(folder(golden).join("golden.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(run.deepstack().len(), spec.deepstack.len(), "{golden}");
        if golden.starts_with("vision_qwen3_5") {
            assert!(spec.deepstack.is_empty() && file.tensor("wide.deepstack").is_err());
            continue;
        }
        assert_eq!(spec.deepstack.len(), 2, "{golden}");
        let embeddings = run.embeddings().unwrap();
        let flat = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let levels = run.deepstack().iter().map(|level| {
            assert_eq!(level.dims(), embeddings.dims(), "{golden}");
            flat(level)
        });
        assert_near(&levels.collect::<Vec<_>>().concat(), &file, "wide.deepstack", golden);
    }
}

/// So that the comparison of embeddings would show exchanged rows and columns, in the table and in the rope.
#[test]
fn pictures_of_qwen_have_grids_within_and_beyond_the_table() {
    for golden in QWEN {
        let checkpoint = checkpoint(golden);
        let spec = checkpoint.vision().unwrap();
        let PatchPositions::TableAndRope { side, .. } = spec.patches.positions else {
            panic!("{golden} has no table");
        };
        let grids: Vec<(usize, usize)> = names(&cases(golden), "pictures")
            .iter()
            .map(|name| processed(&checkpoint, name))
            .map(|image| spec.patch_grid(image.pixels().width(), image.pixels().height()))
            .collect();
        assert!(grids.iter().any(|(rows, columns)| rows > &side && columns <= rows), "{grids:?}");
        assert!(grids.iter().any(|(rows, columns)| columns > &side && rows < columns), "{grids:?}");
        assert!(grids.iter().any(|(rows, columns)| rows.max(columns) < &side), "{grids:?}");
    }
}

#[test]
fn tokens_of_images_are_those_of_the_processors() {
    for golden in VISION.iter().copied() {
        let (checkpoint, cases) = (checkpoint(golden), cases(golden));
        let tokens = &checkpoint.vision().unwrap().tokens;
        let mut images = 0;
        for case in cases["cases"].as_object().unwrap().values() {
            let prompt: Vec<u32> = case["input_ids"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap() as u32)
                .collect();
            for image in case["images"].as_array().unwrap() {
                let name = image[0].as_str().unwrap();
                let [start, len] = [1, 2].map(|i| image[i].as_u64().unwrap() as usize);
                let size = &cases["pictures"][name]["processed"];
                let [width, height] = [0, 1].map(|i| size[i].as_u64().unwrap() as u32);
                let ids = tokens.ids(width, height);
                assert_eq!(ids, prompt[start..start + ids.len()], "{golden} {name}");
                // The last embedding is the last placeholder.
                let last = ids.iter().rposition(|id| *id == tokens.placeholder).unwrap();
                assert_eq!(last + 1, len, "{golden} {name}");
                let count = ids.iter().filter(|id| **id == tokens.placeholder).count();
                assert_eq!(count, tokens.num_embeddings(width, height), "{golden} {name}");
                images += 1;
            }
        }
        assert!(images > 10, "{golden} has images");
    }
}

/// The pieces of two pictures in turn, and on one thread.
#[test]
fn a_run_has_the_same_bits_beside_others_and_on_any_number_of_threads() {
    for golden in VISION.iter().copied() {
        let checkpoint = checkpoint(golden);
        let spec = checkpoint.vision().unwrap();
        for dtype in [LoadDtype::F32, LoadDtype::Bf16] {
            let encoder = encoder(&checkpoint, &LoadOptions { dtype, ..options() });
            let images = ["wide", "tall"].map(|name| processed(&checkpoint, name));
            let whole = images.each_ref().map(|image| embeddings(&encoder, spec, image));
            let mut runs = images.each_ref().map(|image| encoder.begin(image).unwrap());
            for _ in 0..num_pieces(spec, &images[0]).max(num_pieces(spec, &images[1])) {
                runs.iter_mut().for_each(|run| encoder.advance(run).unwrap());
            }
            let cut: [Vec<Vec<f32>>; 2] =
                runs.each_ref().map(|run| run.embeddings().unwrap().to_vec2().unwrap());
            assert_eq!(whole, cut, "{golden}");
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            let alone =
                pool.install(|| images.each_ref().map(|image| embeddings(&encoder, spec, image)));
            assert_eq!(whole, alone, "{golden}");
        }
    }
}

#[test]
fn weights_take_the_memory_that_is_planned() {
    let dtypes = [
        (LoadDtype::F32, Dtype::F32),
        (LoadDtype::F16, Dtype::F16),
        (LoadDtype::Bf16, Dtype::Bf16),
    ];
    for golden in VISION.iter().copied() {
        let checkpoint = checkpoint(golden);
        let spec = checkpoint.vision().unwrap();
        for load_format in [LoadFormat::Auto, LoadFormat::Dummy] {
            for (dtype, planned) in dtypes {
                let encoder =
                    encoder(&checkpoint, &LoadOptions { dtype, load_format, ..options() });
                assert_eq!(encoder.weight_bytes() as u64, spec.weight_bytes(planned), "{golden}");
            }
        }
    }
}

#[test]
fn random_weights_give_embeddings_of_about_one() {
    for golden in VISION.iter().copied() {
        let checkpoint = checkpoint(golden);
        let options = LoadOptions { load_format: LoadFormat::Dummy, ..options() };
        let encoder = encoder(&checkpoint, &options);
        let image = processed(&checkpoint, "alpha");
        let rows = embeddings(&encoder, checkpoint.vision().unwrap(), &image);
        let squares: f32 = rows.iter().flatten().map(|value| value * value).sum();
        let root = (squares / rows.iter().flatten().count() as f32).sqrt();
        assert!((0.05..20.0).contains(&root), "{golden}: {root}");
    }
}

/// A copy of a golden that a test may change.
fn copy(golden: &str, test: &str) -> PathBuf {
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(folder(golden)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to
}

/// Writes a copy's weights with other names.
fn rename(folder: &Path, name: impl Fn(&str) -> String) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter().map(|(old, view)| (name(&old), view));
    let renamed = safetensors::serialize(tensors, None).unwrap();
    fs::write(path, renamed).unwrap();
}

/// transformers 4 and 5, and each with the name of the tower's class in it.
#[test]
fn names_of_both_versions_are_read() {
    for golden in VISION.iter().copied() {
        let expected = checkpoint(golden);
        let image = processed(&expected, "odd");
        let spec = expected.vision().unwrap();
        let expected = embeddings(&encoder(&expected, &options()), spec, &image);
        let names: [fn(&str) -> String; 3] = [
            |name| name.replace("model.vision_tower.vision_model.", "model.vision_tower."),
            |name| {
                let name = name.replace("vision_model.", "");
                name.replace("model.vision_tower.", "vision_tower.")
                    .replace("model.visual.", "visual.")
                    .replace("model.multi_modal_projector.", "multi_modal_projector.")
            },
            |name| {
                name.replace("vision_model.", "")
                    .replace("vision_tower.", "vision_tower.vision_model.")
            },
        ];
        for (i, name) in names.into_iter().enumerate() {
            let copy = copy(golden, &format!("vision-names-{golden}"));
            rename(&copy, name);
            let copy = opened(copy);
            let found = embeddings(&encoder(&copy, &options()), spec, &image);
            assert_eq!(found, expected, "{golden} {i}");
            load(&copy, &options(), &mut |_| {}).unwrap();
        }
    }
}

#[test]
fn faults_of_a_towers_tensors_are_named() {
    let golden = "vision_mistral3";
    let part = "vision_tower.transformer.layers.1.feed_forward.up_proj.weight";
    for (from, to, expected) in [
        ("up_proj", "sideways_proj", "layers.1.feed_forward.up_proj.weight"),
        ("up_proj.weight", "up_proj.weight.absmax", "up_proj.weight"),
    ] {
        let copy = copy(golden, "vision-faults");
        rename(&copy, |name| match name.ends_with(part) {
            true => name.replace(from, to),
            false => name.to_owned(),
        });
        let copy = opened(copy);
        let of_tower = ImageEncoder::load(&copy, &options()).err().unwrap().to_string();
        let of_decoder = load(&copy, &options(), &mut |_| {}).err().unwrap().to_string();
        for error in [of_tower, of_decoder] {
            assert!(error.contains(expected), "{error}");
        }
        // The model without its tower is whole.
        let mut copy = copy;
        copy.without_vision();
        assert!(ImageEncoder::load(&copy, &options()).unwrap().is_none());
        load(&copy, &options(), &mut |_| {}).unwrap();
    }
    let copy = copy(golden, "vision-unknown");
    let path = copy.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = file.tensors();
    let extra = tensors.iter().find(|(name, _)| name.ends_with(part)).unwrap().1.clone();
    tensors.push(("model.vision_tower.warp.weight".to_owned(), extra));
    fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let error = ImageEncoder::load(&opened(copy), &options()).err().unwrap().to_string();
    assert!(error.contains("vision_tower.warp.weight"), "{error}");
}

#[test]
fn pictures_of_other_forms_are_refused() {
    let [pixtral, gemma] = ["vision_mistral3", "vision_gemma3"].map(checkpoint);
    let of_gemma = encoder(&gemma, &options());
    let error = of_gemma.begin(&processed(&pixtral, "wide")).err().unwrap().to_string();
    assert_eq!(error, "the input is a picture of 6 x 12 patches, and the model takes 8 x 8");
}

/// Layers behind the one whose output is taken are neither computed nor loaded.
#[test]
fn the_output_of_an_earlier_layer_can_be_taken() {
    let golden = "vision_mistral3";
    let copy = copy(golden, "vision-feature-layer");
    let config = fs::read_to_string(copy.join("config.json")).unwrap();
    let edited = config.replace("\"vision_feature_layer\": -1", "\"vision_feature_layer\": -2");
    fs::write(copy.join("config.json"), edited).unwrap();
    let earlier = opened(copy);
    let spec = earlier.vision().unwrap();
    assert_eq!((spec.layers, spec.stored_layers), (2, 3));
    let image = processed(&earlier, "tall");
    let found = embeddings(&encoder(&earlier, &options()), spec, &image);
    let whole = checkpoint(golden);
    let all = embeddings(&encoder(&whole, &options()), whole.vision().unwrap(), &image);
    assert_ne!(found, all);
    // The first and the last values of transformers, by `get_image_features` with `vision_feature_layer=-2`.
    let (first, last) = (&found[0], &found[found.len() - 1]);
    let found = [first[0], first[1], first[2], first[3], last[62], last[63]];
    let expected = [3.1297443, 0.7011624, -0.4946235, 2.2024775, -2.1245224, -1.2570581];
    for (found, expected) in found.into_iter().zip(expected) {
        assert!((found - expected as f32).abs() <= TOLERANCE, "{found} is not {expected}");
    }
}
