//! Tensors that ranks put together: sums of partial products, parts of the logits.

use candle_core::{Device, Tensor};
use candlepower_comm::Comm;

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
