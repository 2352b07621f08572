//! Who trains and who only serves parameters.
//!
//! In: the method, the world. Out: this rank's part in it. Invariant: ranks that train are the world's first.

use std::sync::Arc;

use anyhow::Result;
use distributed::Communicator;

use crate::config::SyncConfig;

/// A rank's part in a run.
#[derive(Debug)]
pub enum Role {
    /// It trains, together with the ranks of `communicator`.
    Worker {
        /// The ranks that train.
        communicator: Arc<dyn Communicator>,
        /// Joins them with those that only serve, where there are such.
        server_link: Option<Arc<dyn Communicator>>,
    },
    /// It only serves, over this communicator.
    Server(Arc<dyn Communicator>),
}

impl Role {
    /// This rank's.
    /// Collective: all ranks.
    pub fn of(sync: &SyncConfig, world: &Arc<dyn Communicator>) -> Result<Self> {
        let num_workers = sync.method.num_workers(world.world_size());
        if num_workers == world.world_size() {
            return Ok(Self::Worker {
                communicator: Arc::clone(world),
                server_link: None,
            });
        }
        let server_link = world.duplicate()?;
        Ok(match world.first_ranks(num_workers)? {
            Some(communicator) => Self::Worker {
                communicator,
                server_link: Some(server_link),
            },
            None => Self::Server(server_link),
        })
    }
}
