//! Steps that run ahead of tokens which change them: samples that are taken back, and runs of tokens that are known.

use super::*;

/// The step that runs ahead has computed the newest token. So a sample that is taken back costs no token twice, and its
/// position is free for others.
#[test]
fn a_sample_that_is_not_wanted_is_taken_back() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 16, ..CONFIG });
    let id = scheduler.add(request(0..3)).unwrap()[0];
    let other = scheduler.add(request(10..13)).unwrap()[0];
    let (first, ahead) = (scheduler.schedule(), scheduler.schedule());
    assert_eq!(ahead.rows[0].tokens, [TokenSource::PreviousRow(0)]);
    assert_eq!(scheduler.retract(id), Err(Error::RetractBeforeCommit { seq: id }));
    commit(&mut scheduler, &first);
    assert!(scheduler.is_sampled(id));
    assert_eq!(scheduler.append(id, &[7, 8]), Err(Error::AppendBeforeCommit { seq: id }));
    scheduler.retract(id).unwrap();
    scheduler.append(id, &[7, 8]).unwrap();
    assert!(!scheduler.is_sampled(id) && scheduler.is_sampled(other));
    let next = scheduler.schedule();
    assert_eq!(rows(&next), [(1, 4, 1), (0, 4, 2)], "the token before them is computed");
    assert_eq!(next.rows[1].tokens, [TokenSource::Id(7), TokenSource::Id(8)]);
    assert_eq!(scheduler.retract(id), Err(Error::RetractBeforeCommit { seq: id }));
    // The token that the step sampled for it may be left out. If it is there, nobody takes it.
    scheduler.commit(&ahead, &[Sampled { seq: other, token: 5 }]).unwrap();
    assert_eq!(scheduler.tokens(id), [0, 1, 2, 100, 7, 8]);
    commit(&mut scheduler, &next);
    assert_eq!(scheduler.tokens(id).len(), 7);
    scheduler.retract(id).unwrap();
    scheduler.retract(SeqId(99)).unwrap();
    let (third, ahead) = (scheduler.schedule(), scheduler.schedule());
    commit(&mut scheduler, &third);
    scheduler.retract(id).unwrap();
    commit(&mut scheduler, &ahead);
    assert_eq!(scheduler.tokens(id).len(), 8);
    scheduler.check().unwrap();
}

/// The blocks of a sequence that ends hold its known tokens, the newest one included, and no others.
#[test]
fn what_is_cached_ends_with_the_newest_known_token() {
    let mut scheduler = scheduler(CONFIG);
    let id = scheduler.add(request(0..6)).unwrap()[0];
    let (first, ahead) = (scheduler.schedule(), scheduler.schedule());
    commit(&mut scheduler, &first);
    scheduler.retract(id).unwrap();
    scheduler.remove(id);
    commit(&mut scheduler, &ahead);
    scheduler.add(request((0..6).chain([100, 50]))).unwrap();
    assert_eq!(run_step(&mut scheduler).rows[0].first_position, 7);
}

/// A sequence whose logits were lost computes its newest token again, or, if its state has it already, starts anew.
#[test]
fn a_lost_sample_is_computed_again() {
    for num_state_slots in [0, 8] {
        let mut scheduler = scheduler(SchedulerConfig { num_state_slots, ..CONFIG });
        let id = scheduler.add(request(0..3)).unwrap()[0];
        let (first, ahead) = (scheduler.schedule(), scheduler.schedule());
        commit(&mut scheduler, &first);
        scheduler.hold(id);
        scheduler.retract(id).unwrap();
        scheduler.step_back(id);
        scheduler.step_back(id);
        assert!(scheduler.schedule().rows.is_empty(), "it is held");
        commit(&mut scheduler, &ahead);
        scheduler.release(id);
        let again = scheduler.schedule();
        let expected = if num_state_slots == 0 { (0, 3, 1) } else { (0, 0, 4) };
        assert_eq!(rows(&again), [expected]);
        assert_eq!(again.samples().collect::<Vec<_>>(), [id]);
        assert!(scheduler.schedule().rows.is_empty(), "it runs ahead no longer");
        commit(&mut scheduler, &again);
        assert_eq!(scheduler.tokens(id).len(), 5);
        assert_eq!(rows(&run_step(&mut scheduler)), [(0, 4, 1)]);
    }
}

/// A short run of appended tokens goes one by one beside enough decodes, so that the step stays a decode. A longer one,
/// or a prompt, does not.
#[test]
fn short_runs_leave_decodes_their_graph() {
    let config = SchedulerConfig {
        num_blocks: 200,
        max_num_seqs: 40,
        max_num_batched_tokens: 256,
        max_graph_rows: 40,
        ..CONFIG
    };
    let lengths = |step: &Step| step.rows.iter().map(|row| row.tokens.len()).max().unwrap();
    let start = |config: &SchedulerConfig, num_seqs: u32| {
        let mut scheduler = scheduler(config.clone());
        for i in 0..num_seqs {
            scheduler.add(request(10 * i..10 * i + 3)).unwrap();
        }
        run_step(&mut scheduler);
        scheduler
    };
    let mut scheduler = start(&config, 32);
    let id = SeqId(5);
    scheduler.append(id, &[1, 2]).unwrap();
    for num_left in [2, 1, 0] {
        let step = run_step(&mut scheduler);
        assert_eq!((step.rows.len(), lengths(&step)), (32, 1));
        let row = step.rows.iter().find(|row| row.seq == id).unwrap();
        assert_eq!(row.samples.len(), usize::from(num_left == 0), "only the last token samples");
    }
    assert_eq!(scheduler.tokens(id).len(), 7);
    scheduler.append(id, &[1, 2, 3]).unwrap();
    assert_eq!(lengths(&run_step(&mut scheduler)), 4, "others gain less than it loses");
    scheduler.append(id, &[1]).unwrap();
    scheduler.append(SeqId(6), &[1, 2]).unwrap();
    assert_eq!(lengths(&run_step(&mut scheduler)), 3, "both together");
    scheduler.append(id, &[1]).unwrap();
    scheduler.add(request(900..903)).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!(lengths(&step), 3, "a prompt takes the step out of its graph anyway");
    assert_eq!(step.rows.iter().find(|row| row.seq == id).unwrap().tokens.len(), 2);
    for (config, num_seqs) in [
        (config.clone(), 15),
        (SchedulerConfig { max_graph_rows: 0, ..config.clone() }, 32),
        (SchedulerConfig { max_graph_rows: 31, ..config }, 32),
    ] {
        let mut scheduler = start(&config, num_seqs);
        scheduler.append(id, &[1]).unwrap();
        assert_eq!(lengths(&run_step(&mut scheduler)), 2);
    }
}
