//! Copies of whole blocks of the paged cache.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch};
use crate::Result;
use crate::device::PagedCache;

/// See [`PagedCache::copy_blocks`].
pub(crate) fn copy_blocks(cache: &PagedCache, copies: &Tensor) -> Result<()> {
    let count = copies.elem_count() / 2;
    if count == 0 {
        return Ok(());
    }
    let config = cache.config();
    let dims = PagedCache::dims(config);
    for layer in cache.layers() {
        let launch = Launch::new("copy_blocks", "keys", &layer.keys)?;
        let axes = "[num_blocks, kv_heads, block_size, head_dim]";
        let args = CopyBlocksArgs {
            keys: launch.elements(("keys", &layer.keys), axes, &dims)?,
            values: launch.elements(("values", &layer.values), axes, &dims)?,
            copies: launch.u32s(("copies", copies), "[count, 2]", &[count, 2])?,
            count: count as i64,
            block_bytes: (config.block_elements() * layer.keys.dtype().size_in_bytes()) as i64,
            num_blocks: config.num_blocks as u32,
            padding: 0,
        };
        // SAFETY: the addresses were checked to hold whole blocks, whose bytes are a multiple of 16
        // because positions and head elements are; the kernel compares block numbers before it copies.
        unsafe { launch.run(candlepower_copy_blocks, &args)? };
    }
    Ok(())
}

/// As `CopyBlocksArgs` in qkv.cu.
#[repr(C)]
struct CopyBlocksArgs {
    keys: Address,
    values: Address,
    copies: *mut u32,
    count: i64,
    block_bytes: i64,
    num_blocks: u32,
    padding: i32,
}
const _: () = assert!(size_of::<CopyBlocksArgs>() == 48);

unsafe extern "C" {
    fn candlepower_copy_blocks(args: *const CopyBlocksArgs, stream: CUstream) -> i32;
}
