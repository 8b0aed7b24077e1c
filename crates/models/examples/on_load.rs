//! Writes a copy of a checkpoint whose matrices are what `--quantize-on-load` makes of them, for references that know nothing of
//! it: `on_load FOLDER int8|int4|fp8 OUT`.

use std::{error::Error, fs, path::Path};

use candle_core::DType;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles, OnLoad};
use candlepower_kernels::WeightRows;
use candlepower_models::recoded_values;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, kind, out] = arguments.as_slice() else {
        return Err("FOLDER, int8, int4 or fp8, and OUT are expected".into());
    };
    let (folder, out) = (Path::new(folder), Path::new(out));
    let files = CheckpointFiles::find(folder)?.ok_or("there is no checkpoint")?;
    let mut checkpoint = Checkpoint::open(files)?;
    let kind =
        [OnLoad::Int8, OnLoad::Int4, OnLoad::Fp8].into_iter().find(|known| known.as_str() == kind);
    checkpoint.quantize_on_load(kind.ok_or("there is no such kind")?)?;

    let stored = fs::read(folder.join("model.safetensors"))?;
    let stored = SafeTensors::deserialize(&stored)?;
    let mut numbers = Vec::new();
    for tensor in checkpoint.tensor_plan() {
        let Some((recoded, columns)) = tensor.on_load.zip(tensor.columns()) else { continue };
        let view = stored.tensor(&tensor.name)?;
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            other => return Err(format!("{} is stored as {other}", tensor.name).into()),
        };
        if view.shape() != tensor.shape {
            return Err(format!("{} is not stored in rows", tensor.name).into());
        }
        let rows = WeightRows { dtype, bytes: view.data() };
        let rows = recoded_values(recoded, &tensor.name, columns.len(), rows)?;
        numbers
            .push((tensor.name, rows.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>()));
    }
    let mut views = Vec::new();
    for (name, view) in stored.tensors() {
        let made = numbers.iter().find(|(made, _)| *made == name);
        let view = match made {
            Some((_, bytes)) => TensorView::new(Dtype::F32, view.shape().to_vec(), bytes)?,
            None => view,
        };
        views.push((name, view));
    }
    fs::create_dir_all(out)?;
    fs::copy(folder.join("config.json"), out.join("config.json"))?;
    safetensors::serialize_to_file(views, None, &out.join("model.safetensors"))?;
    Ok(())
}
