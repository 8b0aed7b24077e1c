//! Collectives on tensors: sums of partial products, and shards of the logits side by side.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candlepower_comm::Comm;
#[cfg(feature = "cuda")]
use candlepower_gpu::cuda::{Nccl, NcclId};

use crate::error::Result;

/// The sum of the ranks' tensors f32, which have the same shape.
pub(crate) fn all_reduce(comm: &Comm, part: Tensor) -> Result<Tensor> {
    if comm.size() == 1 {
        return Ok(part);
    }
    let mut values = part.flatten_all()?.to_vec1::<f32>()?;
    comm.all_reduce(&mut values)?;
    Ok(Tensor::from_vec(values, part.dims(), &Device::Cpu)?)
}

/// The columns of all ranks side by side: `[rows, columns]` f32 each, `[rows, ranks * columns]` together.
pub(crate) fn all_gather_columns(comm: &Comm, part: Tensor) -> Result<Tensor> {
    if comm.size() == 1 {
        return Ok(part);
    }
    let (rows, columns) = part.dims2()?;
    let all = comm.all_gather(&part.flatten_all()?.to_vec1::<f32>()?)?;
    let all = Tensor::from_vec(all, (comm.size(), rows, columns), &Device::Cpu)?;
    Ok(all.transpose(0, 1)?.reshape((rows, comm.size() * columns))?)
}

/// The ranks of a model on devices. Their collectives write into the operands: by NCCL on GPUs, and by `comm` where the reference
/// implementations compute.
pub(crate) struct DeviceRanks {
    comm: Arc<Comm>,
    #[cfg(feature = "cuda")]
    nccl: Option<Nccl>,
}

impl DeviceRanks {
    /// Joins the ranks of `comm`, of which this one has `device`. Returns when all have.
    #[cfg_attr(not(feature = "cuda"), allow(clippy::unnecessary_wraps, unused_variables))]
    pub(crate) fn join(comm: Arc<Comm>, device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        let nccl = match device.is_cuda() {
            true => {
                let mut id: NcclId = [0; 128];
                if comm.rank() == 0 {
                    id = Nccl::new_id()?;
                }
                comm.broadcast(&mut id)?;
                comm.barrier()?;
                // NCCL would wait for ever for a rank that has failed.
                let (device, rank, ranks) = (device.clone(), comm.rank(), comm.size());
                Some(comm.meet(move || Nccl::join(&device, &id, rank, ranks))??)
            }
            false => None,
        };
        Ok(Self {
            comm,
            #[cfg(feature = "cuda")]
            nccl,
        })
    }

    /// The messages between the ranks.
    pub(crate) fn comm(&self) -> &Arc<Comm> {
        &self.comm
    }

    /// The number of this rank.
    pub(crate) fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// The number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.comm.size()
    }

    /// Replaces `x` by the sum of all ranks' `x`.
    pub(crate) fn all_reduce(&self, x: &Tensor) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(nccl) = &self.nccl {
            return Ok(nccl.all_reduce(x)?);
        }
        let mut sums = values(x)?;
        self.comm.all_reduce(&mut sums)?;
        write(sums, x)
    }

    /// Fills `all`, `[ranks, ..]`, with every rank's `part`, `[..]`.
    pub(crate) fn all_gather(&self, part: &Tensor, all: &Tensor) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(nccl) = &self.nccl {
            return Ok(nccl.all_gather(part, all)?);
        }
        write(self.comm.all_gather(&values(part)?)?, all)
    }
}

fn values(x: &Tensor) -> Result<Vec<f32>> {
    Ok(x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

fn write(values: Vec<f32>, x: &Tensor) -> Result<()> {
    let values = Tensor::from_vec(values, x.shape(), &Device::Cpu)?.to_dtype(x.dtype())?;
    Ok(x.slice_set(&values, 0, 0)?)
}
