//! A device that does nothing: [`Session::dry_run`](crate::Session::dry_run) uses it to find out whether a dynamic iteration can finish.

use std::sync::Arc;
use std::time::Instant;

use elbowroom_graph::Graph;
use elbowroom_ir::schedule::Stream;
use elbowroom_ir::{ActionId, Bytes};

use crate::arena::Extent;
use crate::device::{Call, Device, Stopped, Waiting};
use crate::error::{EngineError, HostError};
use crate::host::HostTier;

/// A device of a given arena size without memory.
pub(crate) struct DryRunDevice {
    pub limit: Bytes,
    pub host: NullTier,
}

/// A host tier that stores nothing.
pub(crate) struct NullTier;

impl HostTier for NullTier {
    fn store(&self, _: usize, _: &[u8]) -> Result<(), HostError> {
        Ok(())
    }

    fn load(&self, _: usize, _: &mut [u8]) -> Result<(), HostError> {
        Ok(())
    }

    fn resize(&mut self, _: Bytes) -> Result<(), HostError> {
        Ok(())
    }
}

impl Device for DryRunDevice {
    fn limit(&self) -> Bytes {
        self.limit
    }

    fn begin(&self) {}

    fn launch(&self, _: Call<'_>) -> Result<(), EngineError> {
        Ok(())
    }

    fn store(&self, _: Extent, _: usize, _: Instant) -> Result<(), HostError> {
        Ok(())
    }

    fn load(&self, _: usize, _: Extent, _: Instant) -> Result<(), HostError> {
        Ok(())
    }

    fn wait(&self, _: Stream, _: ActionId) -> Result<(), Stopped> {
        Ok(())
    }

    fn reached(&self, _: Stream, _: ActionId) -> bool {
        true
    }

    fn signal(&self, _: Stream, _: ActionId) -> Waiting {
        Waiting::default()
    }

    fn wake(&self, _: Stream) {}

    fn stop(&self) {}

    fn set_program(&mut self, _: Arc<Graph>, _: usize) {}

    fn replace_host(&mut self, host: Box<dyn HostTier>) -> Box<dyn HostTier> {
        host
    }

    fn move_within(&self, _: Extent, _: usize) {}

    fn host(&self) -> &dyn HostTier {
        &self.host
    }

    fn read(&self, _: Extent, _: &mut [u8]) {}

    fn write(&self, _: Extent, _: &[u8]) {}

    fn guard(&self, _: Bytes) {}

    fn commit(&self, _: Bytes) {}

    fn first_overwritten(&self, _: Bytes) -> Option<Bytes> {
        None
    }
}
