//! Servers hold the parameters and update them: synchronously, when all ranks' gradients have come,
//! or with each gradient as it comes.
//!
//! In: this rank's buckets. Out: parameters that a server has updated; if replicas must be equal,
//! those that all servers have then.
//! Invariant: no rank asks a server before root has sent it the parameters, and no rank continues
//! after a synchronisation before all have fetched.
//! Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server" (OSDI).

use std::ops::Range;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Result, anyhow, ensure};
use burn::module::Module;
use distributed::communicator::WaitPolicy;
use distributed::gradients::{
    BucketPlan, Server, ServerClient, ServerPlan, ShardUpdate, StepHeader, agree,
};
use distributed::replica::ParameterLayout;
use distributed::watchdog::{Phase, RankStatus};
use distributed::{CollectiveError, Communicator, ROOT};

use crate::config::{OptimizerChoice, ServerPlacement, SyncMethod, SyncSection};
use crate::step::StepConfig;
use crate::step::host::optimizer::HostOptimizer;
use crate::step::sync_plan::{bucket_cap_bytes, consistency, staleness};

/// A worker of parameter servers, and this rank's own server, if it has one.
#[derive(Debug)]
pub(super) struct Servers {
    /// The reduction of this rank's buckets.
    pub(super) client: Arc<ServerClient>,
    server: Option<JoinHandle<Result<(), CollectiveError>>>,
    /// Joins the ranks that train; a rank sleeps while it waits, as its server uses the same core.
    meeting: Arc<dyn Communicator>,
    /// True if a server updates with each rank's gradient separately.
    is_asynchronous: bool,
}

impl Servers {
    /// Connects to the servers, and starts this rank's own on a thread.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    pub(super) fn start<M: Module>(
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<Self> {
        let method = &config.sync.method;
        check_threads(method, &**communicator)?;
        let link = match &config.server_link {
            Some(link) => Arc::clone(link),
            None => communicator.duplicate()?,
        };
        let update = ServerSgd::new(&config.sync, config.optimizer, model);
        let plan = server_plan(method, &update.plan, link.world_size());
        let mut own = None;
        let mut server = None;
        if plan.servers.contains(&link.rank()) {
            let started = Arc::new(Server::new(&plan, Arc::clone(&link), Box::new(update)));
            own = Some(Arc::clone(&started));
            let thread = Builder::new().name("parameter server".to_owned());
            let thread = thread.spawn(move || started.serve_or_end_the_job());
            server = Some(thread.map_err(CollectiveError::no_thread)?);
        }
        let client = Arc::new(ServerClient::new(
            plan,
            link,
            own,
            Arc::clone(&config.rank_status),
        ));
        let meeting = communicator.duplicate()?;
        meeting.set_wait_policy(WaitPolicy::Sleep);
        Ok(Self {
            client,
            server,
            meeting,
            is_asynchronous: staleness(method).is_some(),
        })
    }

    /// Takes the parameters and velocities that all servers have now; returns true if the ranks
    /// agree to stop.
    ///
    /// # Errors
    /// If a parameter is not finite, or a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    pub(super) fn meet(
        &self,
        optimizer: &mut HostOptimizer,
        plan: &BucketPlan,
        header: &StepHeader,
    ) -> Result<bool> {
        let stop = agree(&*self.meeting, header)?.stop;
        for (index, bucket) in plan.buckets().iter().enumerate() {
            let (parameters, velocities) = self.client.fetch(index, bucket.elements.len())?;
            optimizer.restore_elements(bucket.elements.clone(), &parameters, &velocities);
        }
        // No rank continues before all have fetched.
        self.meeting.barrier()?;
        // A server adds whatever comes; all ranks that fetch now receive the same values.
        ensure!(
            optimizer.parameters().iter().all(|value| value.is_finite()),
            "step {}: expected finite parameters on the servers, got NaN or infinity; begin another run from its weights (--weights) with a lower --learning-rate or --loss-scale",
            header.step
        );
        Ok(stop)
    }

    /// Sends the parameters and velocities of root to the servers.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    pub(super) fn send_state(
        &self,
        optimizer: &HostOptimizer,
        plan: &BucketPlan,
    ) -> Result<(), CollectiveError> {
        if self.meeting.rank() == ROOT {
            for (index, bucket) in plan.buckets().iter().enumerate() {
                let elements = bucket.elements.clone();
                let parameters = &optimizer.parameters()[elements.clone()];
                let velocities = &optimizer.moments()[elements];
                self.client.restore(index, parameters, velocities)?;
                // The answer comes after the server has taken them.
                self.client.fetch(index, bucket.elements.len())?;
            }
        }
        // No rank asks a server before root has sent its state.
        self.meeting.barrier()
    }

    /// Leaves the servers; returns the number of updates of asynchronous ones, by staleness.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    pub(super) fn finish(self) -> Result<Option<Vec<u64>>> {
        self.meeting.barrier()?;
        let histogram = self.client.histogram()?;
        self.meeting.barrier()?;
        self.client.leave()?;
        if let Some(server) = self.server {
            let served = server.join();
            served.map_err(|_| anyhow!("parameter server: its thread panicked"))??;
        }
        Ok(self.is_asynchronous.then_some(histogram))
    }
}

/// Checks that two threads of a process may communicate at once, if workers have servers.
///
/// # Errors
/// On all ranks if they may not on some; or the job ends.
///
/// # Collective
/// Must be called by all ranks of `communicator`.
pub fn check_threads(
    method: &SyncMethod,
    communicator: &dyn Communicator,
) -> Result<(), CollectiveError> {
    let SyncMethod::ParameterServer {
        placement: ServerPlacement::Beside,
        ..
    } = method
    else {
        return Ok(());
    };
    let mut without = [u64::from(!communicator.supports_threads())];
    communicator.all_reduce_max_u64(&mut without)?;
    if without == [0] || communicator.world_size() == 1 {
        return Ok(());
    }
    Err(CollectiveError::Failed(format!(
        "a parameter server on the rank of a worker needs a communicator that two threads may use at once (MPI_THREAD_MULTIPLE), which {} does not offer here. Give the servers dedicated ranks (--server-placement own).",
        communicator.library()
    )))
}

/// Serves on a rank that does nothing else, until the workers have left.
pub fn serve<M: Module>(
    config: &SyncSection,
    optimizer: OptimizerChoice,
    model: &M,
    server_link: Arc<dyn Communicator>,
    rank_status: &Arc<RankStatus>,
) -> Result<(), CollectiveError> {
    let update = ServerSgd {
        status: Arc::clone(rank_status),
        ..ServerSgd::new(config, optimizer, model)
    };
    let plan = server_plan(&config.method, &update.plan, server_link.world_size());
    rank_status.enter(Phase::Serving);
    let served = Server::new(&plan, server_link, Box::new(update)).serve();
    rank_status.enter(Phase::Ending);
    served
}

/// Assigns the buckets to the servers among `world_size` ranks.
fn server_plan(method: &SyncMethod, plan: &BucketPlan, world_size: usize) -> ServerPlan {
    let SyncMethod::ParameterServer {
        servers,
        placement,
        asynchronous,
    } = *method
    else {
        unreachable!("only this method has servers");
    };
    let ranks = match placement {
        ServerPlacement::Beside => (0..servers).collect(),
        ServerPlacement::Own => (world_size - servers..world_size).collect(),
    };
    ServerPlan::new(
        plan,
        method.num_workers(world_size),
        ranks,
        consistency(asynchronous),
    )
}

/// The optimizer on a server.
#[derive(Debug)]
struct ServerSgd {
    plan: BucketPlan,
    sgd: HostOptimizer,
    /// Status of a rank that only serves; any other rank's server notes nothing.
    status: Arc<RankStatus>,
}

impl ServerSgd {
    /// Starts at zero: root sends the parameters before any worker asks for them.
    fn new<M: Module>(config: &SyncSection, optimizer: OptimizerChoice, model: &M) -> Self {
        let layout = ParameterLayout::new(model);
        let total_bytes = layout.num_elements() * size_of::<f32>();
        let zeros = vec![0.0; layout.num_elements()];
        Self {
            plan: BucketPlan::new(&layout, bucket_cap_bytes(config, total_bytes)),
            sgd: HostOptimizer::new(optimizer, &[], &layout, zeros),
            status: Arc::default(),
        }
    }

    fn elements(&self, bucket: usize) -> Range<usize> {
        self.plan.buckets()[bucket].elements.clone()
    }
}

impl ShardUpdate for ServerSgd {
    fn update(&mut self, bucket: usize, learning_rate: f64, gradient: &[f32]) {
        self.status.enter(Phase::Optimizer);
        let elements = self.elements(bucket);
        self.sgd.update_elements(learning_rate, elements, gradient);
        self.status.enter(Phase::Serving);
    }

    fn state(&self, bucket: usize) -> (&[f32], &[f32]) {
        let elements = self.elements(bucket);
        (
            &self.sgd.parameters()[elements.clone()],
            &self.sgd.moments()[elements],
        )
    }

    fn restore(&mut self, bucket: usize, parameters: &[f32], velocities: &[f32]) {
        let elements = self.elements(bucket);
        self.sgd.restore_elements(elements, parameters, velocities);
    }
}
