//! Time limit for the preparations of a deployment, before any part of it exists.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::error::{Error, Leftover, Result};
use crate::params::Params;
use crate::status::Phase;

/// The end of the time that a call to deploy may take.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    name: String,
    seconds: u64,
    at: Instant,
}

impl Deadline {
    /// Starts the clock.
    pub(crate) fn new(params: &Params) -> Self {
        let seconds = params.timeout;
        let at = Instant::now() + Duration::from_secs(seconds);
        Self { name: params.name.clone(), seconds, at }
    }

    /// Runs a future that leaves nothing behind when it is dropped. On a timeout the error says `what`.
    ///
    /// # Errors
    /// The future failed, or did not finish in time.
    pub(crate) async fn hold<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        timeout_at(self.at, work).await.unwrap_or_else(|_| {
            Err(Error::Timeout {
                name: self.name.clone(),
                seconds: self.seconds,
                phase: Phase::Scheduling,
                message: format!(": {what}"),
                log: Vec::new(),
                left: Leftover::Nothing,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlazeParams;

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_is_given_up_with_its_name() {
        let deadline = Deadline::new(&BlazeParams::new("a", "demo").timeout(3).into());
        assert_eq!(deadline.hold("", async { Ok(1) }).await.unwrap(), 1);
        // The clock of this test is paused, so the three seconds pass at once.
        let never = std::future::pending::<Result<()>>();
        let error = deadline.hold("the hub did not answer", never).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "`a` was not ready after 3 s, its last phase was scheduling: the hub did not answer; nothing is left running"
        );
    }
}
