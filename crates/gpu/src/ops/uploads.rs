//! Tensors on a device that are filled piece by piece from host memory, such as weights of a checkpoint.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::Result;
use rayon::prelude::*;

/// Bytes of a piece, which one thread prepares. A copy of this size reaches the rate of PCIe, and a matrix of a small
/// model still has pieces for several threads.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// Copies to tensors that are being filled. On a GPU it holds pinned memory, so make one for all tensors.
#[derive(Debug)]
pub struct Uploads {
    device: Device,
    #[cfg(feature = "cuda")]
    pinned: Option<crate::cuda::PinnedPieces>,
}

/// A tensor that is being filled. Bytes that are never written are zeros.
#[derive(Debug)]
pub struct PartialTensor {
    dtype: DType,
    dims: Vec<usize>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Host(Vec<u8>),
    #[cfg(feature = "cuda")]
    Device(Tensor),
}

/// Writes the bytes of a part. Its arguments are the offset of the first of them in the part, a multiple of eight, and their place.
pub type Fill<'a> = dyn Fn(usize, &mut [u8]) + Sync + 'a;

impl Uploads {
    /// Reserves the pinned memory, 64 MiB, if the device is a GPU.
    ///
    /// # Errors
    /// Memory does not suffice.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            #[cfg(feature = "cuda")]
            pinned: match device {
                Device::Cuda(device) => Some(crate::cuda::PinnedPieces::new(device)?),
                _ => None,
            },
        })
    }

    /// Begins a tensor of zeros.
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub fn begin(&self, dtype: DType, dims: &[usize]) -> Result<PartialTensor> {
        let content = match &self.device {
            #[cfg(feature = "cuda")]
            device @ Device::Cuda(_) => Content::Device(Tensor::zeros(dims, dtype, device)?),
            _ => Content::Host(vec![0; dims.iter().product::<usize>() * dtype.size_in_bytes()]),
        };
        Ok(PartialTensor { dtype, dims: dims.to_vec(), content })
    }

    /// Replaces `len` bytes of a tensor from its byte `first` on. Several threads call `fill`, each for other bytes. On a GPU the copies
    /// may still be queued afterwards, in the order of the device's stream.
    ///
    /// # Errors
    /// CUDA refused a copy.
    ///
    /// # Panics
    /// The bytes lie beyond the tensor's end.
    pub fn write(
        &self,
        tensor: &mut PartialTensor,
        first: usize,
        len: usize,
        fill: &Fill<'_>,
    ) -> Result<()> {
        assert!(first + len <= tensor.num_bytes(), "the bytes lie within the tensor");
        match &mut tensor.content {
            Content::Host(bytes) => {
                let pieces = bytes[first..first + len].par_chunks_mut(PIECE_BYTES).enumerate();
                pieces.for_each(|(index, piece)| fill(index * PIECE_BYTES, piece));
                Ok(())
            }
            #[cfg(feature = "cuda")]
            Content::Device(whole) => match &self.pinned {
                Some(pinned) => pinned.write(whole, first, len, fill),
                None => unreachable!("tensors of a GPU are begun by uploads to it"),
            },
        }
    }

    /// The tensor, whose last copies may still be queued on the device's stream.
    ///
    /// # Errors
    /// Memory does not suffice.
    pub fn finish(&self, tensor: PartialTensor) -> Result<Tensor> {
        let PartialTensor { dtype, dims, content } = tensor;
        match content {
            Content::Host(bytes) => {
                Ok(Tensor::from_raw_buffer(&bytes, dtype, &dims, &self.device)?)
            }
            #[cfg(feature = "cuda")]
            Content::Device(whole) => Ok(whole),
        }
    }
}

impl PartialTensor {
    fn num_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size_in_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_in_any_order_and_the_rest_is_zero() -> Result<()> {
        let uploads = Uploads::new(&Device::Cpu)?;
        let count = PIECE_BYTES / 2;
        let mut tensor = uploads.begin(DType::U32, &[count])?;
        let value = |byte: usize| (byte / 4) as u32;
        let mut write = |first: usize, len: usize| {
            uploads.write(&mut tensor, 4 * first, 4 * len, &|offset, out| {
                assert_eq!(offset % 8, 0);
                for (index, place) in out.as_chunks_mut().0.iter_mut().enumerate() {
                    *place = value(4 * first + offset + 4 * index).to_le_bytes();
                }
            })
        };
        write(count - 7, 7)?;
        write(3, count / 2)?;
        write(3, 0)?;
        let values = uploads.finish(tensor)?.to_vec1::<u32>()?;
        for (index, found) in values.into_iter().enumerate() {
            let is_written = (3..3 + count / 2).contains(&index) || index >= count - 7;
            assert_eq!(found, if is_written { index as u32 } else { 0 }, "value {index}");
        }
        Ok(())
    }
}
