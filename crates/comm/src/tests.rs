//! Threads as ranks: sums, gathers and messages, and every failure of a rank.

use std::{thread, time::Instant};

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// Runs `work` on each rank in a thread of its own, and returns the results in the order of the ranks.
fn on_ranks<T: Send>(size: usize, work: impl Fn(&Comm) -> T + Sync) -> Vec<T> {
    let comms = Comm::local(size, LONG).unwrap();
    thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || work(&comm))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Values whose sum depends on the order of the additions.
fn numbers(rank: usize, len: usize) -> Vec<f32> {
    // The magnitudes span seven powers of ten, so rounding differs with each order of the additions.
    let number = |i: usize| ((i * 31 + rank * 17) % 97) as f32 * 10f32.powi((i + rank) as i32 % 7);
    (0..len).map(|i| number(i) - 40.0).collect()
}

#[test]
fn sums_are_those_in_the_order_of_the_ranks_to_the_bit() {
    for (size, len) in [(1, 5), (2, 4096), (3, 1), (4, 300_000), (8, 0)] {
        let mut want = numbers(0, len);
        for rank in 1..size {
            want.iter_mut().zip(numbers(rank, len)).for_each(|(sum, part)| *sum += part);
        }
        let found = on_ranks(size, |comm| {
            let mut values = numbers(comm.rank(), len);
            comm.all_reduce(&mut values).unwrap();
            assert_eq!(comm.traffic().all_reduces, 1);
            assert_eq!(comm.traffic().all_reduce_bytes, 4 * len as u64);
            values
        });
        assert_eq!(found, vec![want; size], "{size} ranks, {len} numbers");
    }
}

#[test]
fn parts_are_gathered_values_broadcast_and_messages_passed() {
    for size in [1, 2, 4] {
        let found = on_ranks(size, |comm| {
            let rank = comm.rank() as u32;
            let all = comm.all_gather(&[rank, 10 * rank]).unwrap();
            let mut values = [1.5 * rank as f32 + 7.0; 3];
            comm.broadcast(&mut values).unwrap();
            comm.barrier().unwrap();
            if rank == 0 {
                comm.send_message(b"one").unwrap();
                comm.send_message(b"").unwrap();
            } else {
                assert_eq!(comm.next_message().unwrap().unwrap(), b"one");
                assert_eq!(comm.next_message().unwrap().unwrap(), b"");
                comm.answer(&[rank as u8]).unwrap();
            }
            let answers = comm.answers(LONG).unwrap();
            (all, values, answers, comm.traffic())
        });
        let all: Vec<u32> = (0..size as u32).flat_map(|rank| [rank, 10 * rank]).collect();
        for (rank, (gathered, values, answers, traffic)) in found.into_iter().enumerate() {
            assert_eq!((gathered, values), (all.clone(), [7.0; 3]));
            let others = (1..size as u8).map(|rank| vec![rank]).collect::<Vec<_>>();
            assert_eq!(answers, if rank == 0 { others } else { Vec::new() });
            assert_eq!((traffic.all_gathers, traffic.all_gather_bytes), (1, 8));
            assert_eq!((traffic.broadcasts, traffic.broadcast_bytes), (1, 12));
            let messages = (traffic.messages, traffic.message_bytes);
            assert_eq!(messages, if rank == 0 { (2, 3) } else { (0, 0) });
        }
    }
}

#[test]
fn gathered_shards_may_be_empty() {
    for size in [1, 2, 4] {
        let found = on_ranks(size, |comm| {
            let all = comm.all_gather::<u32>(&[]).unwrap();
            // A frame that rank 0 has not read would be in the way of the next operation.
            let mut values = [1.0];
            comm.all_reduce(&mut values).unwrap();
            (all, values)
        });
        assert_eq!(found, vec![(Vec::new(), [size as f32]); size]);
    }
}

/// Error of rank 0 while rank 1 runs `other`.
fn found_by_root(deadline: Duration, other: impl FnOnce(Comm) + Send) -> Error {
    let [root, leaf] = <[Comm; 2]>::try_from(Comm::local(2, deadline).unwrap()).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || other(leaf));
        let error = root.all_reduce(&mut [0.0; 4]).unwrap_err();
        // Rank 0 ends after its failure.
        drop(root);
        error
    })
}

#[test]
fn a_rank_that_is_gone_or_has_failed_is_named() {
    assert_eq!(found_by_root(LONG, drop).to_string(), "rank 1 has ended");
    let told = found_by_root(LONG, |leaf| leaf.fail("no memory"));
    assert_eq!(told.to_string(), "rank 1 failed: no memory");
    let orphan = Comm::local(2, LONG).unwrap().pop().unwrap();
    assert!(orphan.next_message().unwrap().is_none());
    assert_eq!(orphan.barrier().unwrap_err().to_string(), "rank 0 has ended");
    let [root, leaf] = <[Comm; 2]>::try_from(Comm::local(2, LONG).unwrap()).unwrap();
    root.fail("cancelled");
    assert_eq!(leaf.next_message().unwrap_err().to_string(), "rank 0 failed: cancelled");
    leaf.fail("broken");
    // The socket still holds the failure when rank 0 writes to its closed end, and it must win over the broken
    // pipe.
    drop(leaf);
    let told = root.send_message(b"step").and_then(|()| root.barrier()).unwrap_err();
    assert_eq!(told.to_string(), "rank 1 failed: broken");
}

/// Rank 1 is still at work when rank 2 fails. Neither rank 0's own work nor its wait for answers continues.
#[test]
fn a_failure_is_seen_while_others_are_still_at_work() {
    let [root, busy, failing] = <[Comm; 3]>::try_from(Comm::local(3, LONG).unwrap()).unwrap();
    root.look_around().unwrap();
    busy.look_around().unwrap();
    failing.fail("its file is gone");
    let told = root.look_around().unwrap_err().to_string();
    assert_eq!(told, "rank 2 failed: its file is gone");
    drop(failing);
    assert_eq!(root.answers(LONG).unwrap_err().to_string(), "rank 2 has ended");
    assert_eq!(root.look_around().unwrap_err().to_string(), "rank 2 has ended");
    let deadline = Duration::from_millis(20);
    drop(root);
    assert_eq!(busy.look_around().unwrap_err().to_string(), "rank 0 has ended");
    let [root, silent] = <[Comm; 2]>::try_from(Comm::local(2, LONG).unwrap()).unwrap();
    let late = root.answers(deadline).unwrap_err().to_string();
    assert_eq!(late, "rank 1 has not answered for 0.02 s");
    // An answer that is not expected yet is no failure.
    silent.answer(b"here").unwrap();
    root.look_around().unwrap();
    assert_eq!(root.answers(LONG).unwrap(), [b"here"]);
    drop(root);
    assert_eq!(silent.look_around().unwrap_err().to_string(), "rank 0 has ended");
}

/// Rank 0 had nothing to do. Work that takes it no time does not give another rank the whole deadline.
#[test]
fn a_rank_that_does_not_answer_is_given_a_multiple_of_the_time_of_rank_0() {
    let (deadline, least) = (Duration::from_secs(30), Duration::from_secs(3));
    let began = Instant::now();
    let error = found_by_root(deadline, move |leaf| {
        // The rank lives and is silent until rank 0 has failed.
        assert!(leaf.next_message().unwrap().is_none());
    });
    // The least time is a tenth of the deadline (`LEAST_PART`).
    let Error::Deadline { rank: 1, after } = error else { panic!("{error}") };
    assert!((least..deadline).contains(&after), "{after:?}");
    assert!((after..deadline).contains(&began.elapsed()));
    // The longer rank 0 takes, the longer the others may take.
    let [root, leaf] = <[Comm; 2]>::try_from(Comm::local(2, deadline).unwrap()).unwrap();
    root.send_message(b"go").unwrap();
    assert!(root.patience() < deadline / 2);
    thread::sleep(Duration::from_millis(400));
    // Twenty times (`SLOWER`) the 400 ms of rank 0.
    assert!(root.patience() >= Duration::from_secs(8));
    drop(leaf);
}

/// A wait without an end, as when GPUs join a communicator.
#[test]
fn ranks_that_meet_by_other_means_are_not_waited_for_where_one_is_gone() {
    let for_ever = || loop {
        thread::park();
    };
    let [root, leaf] = <[Comm; 2]>::try_from(Comm::local(2, LONG).unwrap()).unwrap();
    assert_eq!(root.meet(|| 7).unwrap(), 7);
    leaf.fail("its GPU is gone");
    let told = root.meet::<()>(for_ever).unwrap_err().to_string();
    assert_eq!(told, "rank 1 failed: its GPU is gone");
    drop(leaf);
    assert_eq!(root.meet::<()>(for_ever).unwrap_err().to_string(), "rank 1 has ended");
    // The deadline is shorter than one interval between looks, and is still kept to within one.
    let [root, _leaf] = <[Comm; 2]>::try_from(Comm::local(2, LOOK / 2).unwrap()).unwrap();
    let late = root.meet::<()>(for_ever).unwrap_err().to_string();
    assert!(late.starts_with("the ranks have not met within 0.05 s"), "{late}");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let found = found_by_root(LONG, |leaf| drop(leaf.all_reduce(&mut [0.0; 3])));
    assert_eq!(
        found.to_string(),
        "rank 1 is out of step: it sent all_reduce of 12 bytes of f32 where all_reduce of 16 bytes of f32 was due"
    );
    let found = found_by_root(LONG, |leaf| drop(leaf.all_gather(&[1u32; 4])));
    assert_eq!(
        found.to_string(),
        "rank 1 is out of step: it sent all_gather of 16 bytes of u32 where all_reduce of 16 bytes of f32 was due"
    );
    let found = found_by_root(LONG, |leaf| drop(leaf.answer(b"hello")));
    assert!(found.to_string().contains("it sent message of 5 bytes of u8"), "{found}");
    let leaf = Comm::local(2, LONG).unwrap().pop().unwrap();
    let refused = leaf.send_message(b"").unwrap_err().to_string();
    assert_eq!(refused, "rank 1 cannot send to all: only rank 0 does");
}
