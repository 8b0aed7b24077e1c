//! Copies of recurrent states between slots.

use candle_core::Tensor;
use candlepower_kernels::Result;

use super::launch_on_gpu;
use super::reference::Reference;
use crate::operands::{INPUTS_AXES, MATRICES_AXES, StatePool};

/// Copies whole states in all layers. `pairs` is u32 `[count, 2]`, with source and destination of each copy. A
/// destination may not be a source or occur twice. Pairs with a slot outside the pool are ignored. The CPU's
/// counterpart is [`candlepower_kernels::copy_states`], which copies in order.
///
/// # Errors
/// `pairs` has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn copy_states(pool: &StatePool, pairs: &Tensor) -> Result<()> {
    const KERNEL: &str = "copy_states";
    launch_on_gpu!(pairs, crate::cuda::copy_states(pool, pairs));
    let count = pairs.elem_count() / 2;
    let pairs = Reference::integers(KERNEL).u32s(("pairs", pairs), "[count, 2]", &[count, 2])?;
    let slots = pool.config.num_slots;
    let pairs = pairs.chunks(2).map(|pair| (pair[0] as usize, pair[1] as usize));
    let pairs: Vec<_> = pairs.filter(|pair| pair.0 < slots && pair.1 < slots).collect();
    let (inputs_dims, matrices_dims) = pool.config.layer_dims();
    for layer in &pool.layers {
        let matrices = layer.matrices.as_ref().zip(matrices_dims.as_ref());
        let matrices = matrices.map(|(tensor, dims)| (tensor, MATRICES_AXES, &dims[..]));
        let inputs = (&layer.inputs, INPUTS_AXES, &inputs_dims[..]);
        for (tensor, axes, dims) in std::iter::once(inputs).chain(matrices) {
            let reference = Reference::of_cache(KERNEL, tensor);
            let mut values = reference.elements(("state", tensor), axes, dims)?;
            let len = values.len() / slots.max(1);
            for &(source, destination) in &pairs {
                // No destination is a source, so the order of copies does not matter, as on a GPU.
                values.copy_within(source * len..(source + 1) * len, destination * len);
            }
            reference.write(("state", tensor), axes, dims, &values)?;
        }
    }
    Ok(())
}
