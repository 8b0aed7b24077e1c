//! The engine over ranks, which are threads: every architecture and every kind of request as on one rank.

use candlepower_testing::goldens::DECODERS;

use super::{
    device::{assert_same, on_device, run_together},
    *,
};

/// Goldens with fewer positions than are asked for.
const LEFT_OUT: [&str; 4] = ["gpt2", "gpt2-outer", "gpt-neo", "opt"];

/// In f32: ranks add in another order, and bf16 would round the differences up.
fn over(ranks: usize) -> EngineConfig {
    let load = LoadOptions { dtype: LoadDtype::F32, ..config().load };
    EngineConfig { load, tensor_parallel_size: ranks, ..config() }
}

#[test]
fn every_architecture_gives_the_text_of_one_rank() {
    for name in DECODERS.iter().filter(|name| !LEFT_OUT.contains(name)) {
        let answer = |ranks| {
            let engine = EngineHandle::start(&checkpoint(name), over(ranks), &mut |_| ()).unwrap();
            let params = SamplingParams { logprobs: Some(3), ..greedy(64) };
            run(&engine, request(prompt(5, 40), params))
        };
        let one = answer(1);
        assert_eq!(one[0].tokens.len(), 64);
        let sizes = checkpoint(name).spec().tensor_parallel_sizes();
        for ranks in [2, 4].into_iter().filter(|ranks| sizes.contains(ranks)) {
            assert_same(&answer(ranks), &one, &format!("{name} over {ranks} ranks"));
        }
    }
}

/// Prompts in pieces, blocks that are taken back, prefixes from the cache, forks, penalties and scores.
#[test]
fn requests_of_every_kind_give_what_one_rank_gives() {
    let one = start(over(1));
    let want = run_together(&one);
    let block_bytes = one.info().kv_cache_bytes / one.info().num_blocks as u64;
    let two = start(over(2));
    assert_eq!(two.info().kv_cache_bytes / two.info().num_blocks as u64, block_bytes);
    assert_same(&run_together(&two), &want, "two ranks");
    assert_same(&run_together(&two), &want, "two ranks, with prompts in the cache");
    let cached = run(&two, request(prompt(1, 50), greedy(8))).remove(0);
    let again = run(&two, request(prompt(1, 50), greedy(8))).remove(0);
    assert_eq!((again.cached, again.tokens), (48, cached.tokens));
    let small = EngineConfig {
        max_num_seqs: 3,
        max_num_batched_tokens: Some(11),
        // The cache of each rank.
        kv_cache_bytes: Some(9 * block_bytes / 2),
        ..over(2)
    };
    let small = start(small);
    assert_eq!(small.info().num_blocks, 9);
    assert_same(&run_together(&small), &want, "small");
}

/// The ranks work like ranks on GPUs, with the reference implementations, and with sums over sockets. Each rank has the same tables,
/// and rank 0 alone samples.
#[test]
fn ranks_on_devices_give_what_one_rank_gives() {
    let want = run_together(&start(config()));
    let two = start(EngineConfig { tensor_parallel_size: 2, ..on_device() });
    assert_same(&run_together(&two), &want, "two devices");
    let (block_bytes, small) = (two.info().kv_cache_bytes / two.info().num_blocks as u64, 9);
    let eager = start(EngineConfig {
        max_num_seqs: 3,
        max_num_batched_tokens: Some(11),
        kv_cache_bytes: Some(small * block_bytes / 2),
        enforce_eager: true,
        tensor_parallel_size: 2,
        ..on_device()
    });
    assert_eq!(eager.info().num_blocks as u64, small);
    assert_same(&run_together(&eager), &want, "two small devices, eager");
}

#[test]
fn dropped_streams_free_their_places_on_all_ranks() {
    let engine = start(EngineConfig { max_num_seqs: 4, ..over(4) });
    let streams: Vec<_> = (0..40)
        .map(|i| engine.submit(request(prompt(i, 60), greedy(60))).unwrap().remove(0))
        .collect();
    drop(streams);
    assert_eq!(run(&engine, request(prompt(0, 10), greedy(3))).remove(0).tokens.len(), 3);
    while engine.num_in_flight() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(engine.health(), EngineHealth::Healthy);
}

#[test]
fn ranks_that_cannot_be_are_refused() {
    let refused = |config| {
        let started = EngineHandle::start(&checkpoint("llama"), config, &mut |_| ());
        started.unwrap_err().to_string()
    };
    assert_eq!(
        refused(over(3)),
        "tensor_parallel_size 3 does not divide the model's 4 attention heads; choose one of 1, 2, 4"
    );
    assert_eq!(refused(over(0)), "tensor_parallel_size is 0: it must be at least 1");
    // All ranks have loaded their parts when it is seen that no cache can be had.
    let tiny = EngineConfig { kv_cache_bytes: Some(1), ..over(2) };
    assert!(refused(tiny).starts_with("the KV cache cannot hold one sequence"));
}
