//! Head widths of attention on a GPU. The build script of `gpu` includes this file, so it imports nothing.

pub(crate) const DEVICE_HEAD_DIMS: [usize; 4] = [64, 128, 256, 512];
