//! Completeness of the table of slots: some golden has each slot, and its file format has a name for it.

use std::collections::BTreeSet;

use super::*;
use crate::{Checkpoint, CheckpointFiles};

#[test]
fn every_slot_is_some_models_and_has_a_name_in_its_files() {
    let mut seen = BTreeSet::new();
    for folder in std::fs::read_dir(candlepower_testing::goldens::root()).unwrap() {
        let folder = folder.unwrap().path();
        let files = CheckpointFiles::find(&folder).unwrap().unwrap();
        if files.gguf().is_none() && !files.contains("config.json") {
            continue;
        }
        let checkpoint = Checkpoint::open(files).unwrap();
        let slots = checkpoint.spec().slots().map(|(layer, slot, _)| (layer, slot));
        let slots: BTreeSet<_> = slots.collect();
        let plan = checkpoint.tensor_plan();
        let named = plan.iter().flat_map(|tensor| &tensor.slots);
        let named: BTreeSet<_> = named.map(|rows| (rows.layer, rows.slot)).collect();
        assert_eq!(slots, named, "{}", folder.display());
        seen.extend(slots.into_iter().map(|(_, slot)| slot.of_any_expert()));
    }
    let unseen: Vec<_> = Slot::ALL.iter().filter(|slot| !seen.contains(*slot)).collect();
    assert!(unseen.is_empty(), "no golden has {unseen:?}");
}

/// Files of Qwen3-VL have experts in either form, under the same name.
#[test]
fn experts_are_taken_as_their_shape_says() {
    let golden = candlepower_testing::goldens::folder("vision_qwen3_vl_moe");
    let checkpoint = Checkpoint::open(CheckpointFiles::Folder(golden)).unwrap();
    let of_all = |name: &str| name.contains(".mlp.experts.") && !name.ends_with(".weight");
    let plan = checkpoint.plan_of_stored(&of_all);
    let named = |name: &str| plan.iter().find(|tensor| tensor.name.ends_with(name)).unwrap();
    let planned = named("layers.0.mlp.experts.gate_up_proj");
    assert_eq!(
        (planned.take, planned.stored_shape.as_slice()),
        (Take::ExpertRows, &[4, 48, 64][..])
    );
    let fitted = |stored: &[usize]| {
        let mut tensor = planned.clone();
        tensor.fit(stored);
        (tensor.take, tensor.stored_shape)
    };
    let transposed = Take::Experts { alternating: false };
    assert_eq!(fitted(&[4, 64, 48]), (transposed, vec![4, 64, 48]));
    // The planned shape, and one that the check of the files refuses.
    for other in [[4, 48, 64], [4, 64, 64]] {
        assert_eq!(fitted(&other), (Take::ExpertRows, vec![4, 48, 64]));
    }
    let mut square = TensorPlan { stored_shape: vec![4, 64, 64], ..planned.clone() };
    square.fit(&[4, 64, 64]);
    assert_eq!(square.take, Take::ExpertRows);
    // Other tensors stay as they are.
    let mut dense = named("layers.1.mlp.gate_proj.weight").clone();
    dense.fit(&[64, 96]);
    assert_eq!(&dense, named("layers.1.mlp.gate_proj.weight"));
}
