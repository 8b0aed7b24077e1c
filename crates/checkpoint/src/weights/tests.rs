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
