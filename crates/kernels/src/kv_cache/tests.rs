//! Writes land where the layout says, copies reach all layers, bad operands are refused.

use super::*;

const CONFIG: KvCacheConfig = KvCacheConfig {
    num_layers: 2,
    num_blocks: 5,
    block_size: 32,
    num_kv_heads: 3,
    head_dim: 8,
    latent: None,
};

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// A cache whose layer 1 holds distinct values, exact in bf16, in two slots; and those values.
fn filled(slots: &[u32; 2], dtype: DType) -> (KvCache, Vec<f32>, Vec<f32>) {
    let cache = KvCache::new(CONFIG, dtype, &Device::Cpu).unwrap();
    let k = Tensor::arange(1f32, 49., &Device::Cpu).unwrap().reshape((2, 3, 8)).unwrap();
    let v = (&k + 100.).unwrap();
    reshape_and_cache(&k, &v, &cache, 1, &Tensor::new(slots, &Device::Cpu).unwrap()).unwrap();
    (cache, flat(&k), flat(&v))
}

#[test]
fn each_element_goes_to_its_place_and_no_other_changes() {
    for dtype in [DType::F32, DType::BF16] {
        let slots = [37u32, 4];
        let (cache, k, v) = filled(&slots, dtype);
        let layer = cache.layer(1).unwrap();
        let (mut want_keys, mut want_values) = (vec![0.0; 5 * 32 * 24], vec![0.0; 5 * 32 * 24]);
        for (token, slot) in slots.iter().enumerate() {
            for head in 0..3 {
                for dim in 0..8 {
                    let (slot, order) = (*slot as usize, CacheOrder::of(dtype));
                    let (key, value) =
                        reshape_and_cache_reference(&CONFIG, order, slot, (head, dim));
                    want_keys[key] = k[(token * 3 + head) * 8 + dim];
                    want_values[value] = v[(token * 3 + head) * 8 + dim];
                }
            }
        }
        assert_eq!(flat(&layer.keys), want_keys, "{dtype:?}");
        assert_eq!(flat(&layer.values), want_values, "{dtype:?}");
        let untouched = cache.layer(0).unwrap();
        assert!(flat(&untouched.keys).iter().chain(&flat(&untouched.values)).all(|v| *v == 0.0));
        // The documented axes: keys [block, head, dim, offset], values [block, head, offset, dim]. In pairs the
        // parity of dim or offset is one more axis, the last.
        let at = |tensor: &Tensor, place: &[usize]| {
            let found = place.iter().fold(tensor.clone(), |part, index| part.get(*index).unwrap());
            found.to_dtype(DType::F32).unwrap().to_scalar::<f32>().unwrap()
        };
        let (key, value): (&[usize], &[usize]) = match dtype {
            DType::BF16 => (&[1, 2, 3, 5, 1], &[1, 2, 2, 7, 1]),
            _ => (&[1, 2, 7, 5], &[1, 2, 5, 7]),
        };
        assert_eq!((at(&layer.keys, key), at(&layer.values, value)), (k[23], v[23]), "{dtype:?}");
    }
}

#[test]
fn blocks_are_copied_in_order_in_all_layers() {
    for dtype in [DType::F32, DType::BF16] {
        let (cache, ..) = filled(&[37, 4], dtype);
        copy_blocks(&cache, &[(1, 3), (0, 1), (3, 4)]).unwrap();
        copy_blocks(&cache, &[]).unwrap();
        let layer = cache.layer(1).unwrap();
        for tensor in [&layer.keys, &layer.values] {
            let block = |i: usize| flat(&tensor.get(i).unwrap());
            assert!(block(3).iter().any(|v| *v != 0.0));
            assert_eq!(block(3), block(4));
            assert_eq!(block(0), block(1));
            assert_ne!(block(0), block(3));
        }
        assert!(matches!(
            copy_blocks(&cache, &[(0, 5)]),
            Err(Error::OutOfRange { index: "block", .. })
        ));
    }
}

/// Number of pages of this memory that the system has provided. Bit 63 of an entry of `pagemap` says whether a page is
/// present.
///
/// Source: Documentation/admin-guide/mm/pagemap.rst of Linux.
#[cfg(target_os = "linux")]
fn present_pages(memory: &[u8]) -> usize {
    use std::os::unix::fs::FileExt;
    const PAGE: usize = 4096;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0; memory.len() / PAGE * 8];
    pagemap.read_exact_at(&mut entries, (memory.as_ptr() as usize / PAGE * 8) as u64).unwrap();
    entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count()
}

#[cfg(target_os = "linux")]
#[test]
fn a_new_cache_takes_no_memory_until_it_is_written() {
    // Allocators keep smaller pieces of memory, with pages that were used before.
    let config = KvCacheConfig { num_layers: 1, num_blocks: 1 << 16, ..CONFIG };
    for dtype in [DType::F32, DType::BF16, DType::F8E4M3] {
        let cache = KvCache::new(config, dtype, &Device::Cpu).unwrap();
        let (storage, _) = cache.layer(0).unwrap().keys.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else { panic!("it is on the CPU") };
        let bytes = |bytes: usize, address: *const u8| {
            // SAFETY: the storage has that many bytes, all of them initialized, and nobody writes to it here.
            unsafe { std::slice::from_raw_parts(address, bytes) }
        };
        let memory = match storage {
            CpuStorage::F32(data) => bytes(size_of_val(&data[..]), data.as_ptr().cast()),
            CpuStorage::BF16(data) => bytes(size_of_val(&data[..]), data.as_ptr().cast()),
            CpuStorage::F8E4M3(data) => bytes(size_of_val(&data[..]), data.as_ptr().cast()),
            _ => panic!("the cache has no other dtype"),
        };
        // Pages at both ends may hold other data, such as the allocator's own.
        let present = present_pages(memory);
        assert!(present <= 2, "{dtype:?}: {present} pages of {} bytes", memory.len());
    }
}

#[test]
fn sizes_are_counted() {
    let cache = KvCache::new(CONFIG, DType::F32, &Device::Cpu).unwrap();
    assert_eq!(KvCache::bytes_per_block(&CONFIG, DType::F32), 2 * 2 * 3 * 8 * 32 * 4);
    assert_eq!(KvCache::bytes_per_block(&CONFIG, DType::BF16), 2 * 2 * 3 * 8 * 32 * 2);
    assert_eq!(KvCache::bytes_per_block(&CONFIG, DType::F8E4M3), 2 * 2 * 3 * 8 * 32);
    assert_eq!(cache.num_bytes(), 5 * KvCache::bytes_per_block(&CONFIG, DType::F32));
    assert_eq!((cache.num_blocks(), cache.block_size()), (5, 32));
    assert_eq!(cache.config(), &CONFIG);
}

/// A value is divided by its scale and becomes the nearest value of e4m3, to even between two. Larger values become
/// the largest of e4m3.
///
/// Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
#[test]
fn a_cache_in_fp8_rounds_what_is_written() {
    let scales = [KvScales { key: 4.0, value: 0.5 }, KvScales::ONE];
    let cache = KvCache::new(CONFIG, DType::F8E4M3, &Device::Cpu).unwrap();
    let cache = cache.with_scales(&scales).unwrap();
    let written = [0.0f32, -1.0, 1.06, 1.0625, 1.1875, 447.0, 1e6, -1e-9];
    let rounded = [0.0, -1.0, 1.0, 1.0, 1.25, 448.0, 448.0, -0.0];
    let rows = |scale: f32| {
        let numbers = written.map(|number| number * scale).repeat(3);
        Tensor::from_vec(numbers, (1, 3, 8), &Device::Cpu).unwrap()
    };
    let slot = Tensor::new(&[37u32], &Device::Cpu).unwrap();
    reshape_and_cache(&rows(4.0), &rows(0.5), &cache, 0, &slot).unwrap();
    copy_blocks(&cache, &[(1, 4)]).unwrap();
    let layer = cache.layer(0).unwrap();
    let [keys, values] = [&layer.keys, &layer.values].map(flat);
    for slot in [37, 4 * 32 + 5] {
        for (dim, want) in rounded.into_iter().enumerate() {
            let (key, value) =
                reshape_and_cache_reference(&CONFIG, CacheOrder::Single, slot, (2, dim));
            assert_eq!((keys[key], values[value]), (want, want), "{}", written[dim]);
        }
    }
    let of = |dtype| KvCache::new(CONFIG, dtype, &Device::Cpu).unwrap();
    let refused = of(DType::F8E4M3).with_scales(&scales[..1]);
    assert!(matches!(refused, Err(Error::Parameter { parameter: "scales", value: 1, .. })));
    let refused = of(DType::BF16).with_scales(&scales);
    assert!(matches!(refused, Err(Error::DType { operand: "dtype", .. })));
    let refused = KvCache::new(CONFIG, DType::F16, &Device::Cpu);
    assert!(matches!(refused, Err(Error::DType { operand: "dtype", .. })));
}

#[test]
fn bad_operands_are_refused() {
    let refused = |config: KvCacheConfig| match KvCache::new(config, DType::F32, &Device::Cpu) {
        Err(Error::Parameter { parameter, .. }) => parameter,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(KvCacheConfig { block_size: 24, ..CONFIG }), "block_size");
    assert_eq!(refused(KvCacheConfig { block_size: 0, ..CONFIG }), "block_size");
    assert_eq!(refused(KvCacheConfig { head_dim: 12, ..CONFIG }), "head_dim");
    assert_eq!(refused(KvCacheConfig { num_kv_heads: 0, ..CONFIG }), "num_kv_heads");
    assert_eq!(refused(KvCacheConfig { num_blocks: 1 << 28, ..CONFIG }), "num_blocks");

    let cache = KvCache::new(CONFIG, DType::F32, &Device::Cpu).unwrap();
    let rows = Tensor::zeros((2, 3, 8), DType::F32, &Device::Cpu).unwrap();
    let slots = |slots: &[u32]| Tensor::new(slots, &Device::Cpu).unwrap();
    let write =
        |k: &Tensor, v: &Tensor, layer, at: &Tensor| reshape_and_cache(k, v, &cache, layer, at);
    let error = write(&rows, &rows, 0, &slots(&[0, 160])).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { index: "slot", value: 160, bound: 160, .. }));
    let error = write(&rows, &rows, 2, &slots(&[0, 1])).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { index: "layer", .. }));
    let error = write(&rows, &rows, 0, &slots(&[0])).unwrap_err();
    assert!(matches!(error, Error::Shape { operand: "slot_mapping", .. }));
    let error = write(&rows, &rows.narrow(0, 0, 1).unwrap(), 0, &slots(&[0, 1])).unwrap_err();
    assert!(matches!(error, Error::Shape { operand: "v", .. }));
    let transposed = rows.transpose(1, 2).unwrap().contiguous().unwrap();
    let error = write(&transposed, &rows, 0, &slots(&[0, 1])).unwrap_err();
    assert!(matches!(error, Error::Shape { operand: "k", .. }));
    let error = write(&rows.to_dtype(DType::F64).unwrap(), &rows, 0, &slots(&[0, 1])).unwrap_err();
    assert!(matches!(error, Error::DType { operand: "k", .. }));
    let signed = Tensor::new(&[0i64, 1], &Device::Cpu).unwrap();
    assert!(matches!(
        write(&rows, &rows, 0, &signed),
        Err(Error::DType { operand: "slot_mapping", .. })
    ));
}
