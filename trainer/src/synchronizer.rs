//! When and how the replicas of a model become one again: what `--sync` chooses.
//!
//! In: the method, the bucket plan, the ranks. Out: the reduction of gradients, and what surrounds a step.
//! Invariant: all ranks make the same choice for the same step.
//! Source: Lin et al. 2020, "Don't use large mini-batches, use local SGD" (1808.07217); Li et al. 2014 for parameter servers.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};
use burn::module::Module;
use distributed::{
    BucketPlan, BucketReduction, Carried, CollectiveError, Communicator, CompressedReduction, Consistency,
    ExactReduction, GradientReducer, ParameterLayout, ReducerConfig, ReductionKind, Server, ServerClient, ServerPlan,
    ShardUpdate, SumReduction, Traffic, Whereabouts, watchdog,
};

use crate::config::{PlacementKind, Staleness, SyncConfig, SyncMethod};
use crate::optimizer::{Sgd, SgdConfig};

/// What a step does about the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Togetherness {
    /// All gradients are summed before the update.
    Together,
    /// The rank updates alone.
    Alone,
    /// The rank updates alone; then parameters and velocities are averaged.
    ThenAverage,
}

/// The method at work on one rank.
#[derive(Debug)]
pub struct Synchronizer {
    method: SyncMethod,
    client: Option<Arc<ServerClient>>,
    server: Option<JoinHandle<Result<(), CollectiveError>>>,
}

impl Synchronizer {
    /// Starts the method: plans buckets, connects to servers, starts this rank's own.
    ///
    /// # Errors
    /// When the ranks' plans differ, or a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn start<M: Module>(
        config: &SyncConfig,
        sgd: SgdConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
        server_link: Option<Arc<dyn Communicator>>,
        whereabouts: &Arc<Whereabouts>,
    ) -> Result<(Self, GradientReducer)> {
        let reducer_config = reducer_config(config, &ParameterLayout::new(model));
        let mut synchronizer = Self { method: config.method.clone(), client: None, server: None };
        let reducer =
            GradientReducer::with_reduction(model, Arc::clone(communicator), &reducer_config, |plans, own| {
                let inner = synchronizer.reduction(plans, own, sgd, server_link, (config.gpu, whereabouts))?;
                Ok(Box::new(Noted { inner, whereabouts: Arc::clone(whereabouts) }))
            })?;
        Ok((synchronizer, reducer))
    }

    /// What step number `step` does about the other ranks; `must_meet`: the replicas must be equal after it.
    pub fn togetherness(&self, step: u64, must_meet: bool) -> Togetherness {
        match self.method {
            SyncMethod::LocalSgd { every, from_step } if step >= from_step => {
                match must_meet || (step + 1).is_multiple_of(every) {
                    true => Togetherness::ThenAverage,
                    false => Togetherness::Alone,
                }
            }
            _ => Togetherness::Together,
        }
    }

    /// Whether ranks run apart inside a step that sums nothing: an asynchronous server updates with each rank's gradient.
    pub fn is_asynchronous(&self) -> bool {
        self.staleness().is_some()
    }

    /// How many updates old the parameters may be that a rank computes with, if the ranks run apart at all; unbounded if within
    /// it there is none.
    pub fn staleness(&self) -> Option<Option<u64>> {
        match self.method {
            SyncMethod::ParameterServer { asynchronous, .. } => match consistency(asynchronous) {
                Consistency::Synchronous => None,
                Consistency::Asynchronous { bound } => Some(bound),
            },
            _ => None,
        }
    }

    /// The servers, if there are any.
    pub fn client(&self) -> Option<&ServerClient> {
        self.client.as_deref()
    }

    /// Parts of a global batch that are kept apart, if there are any.
    pub fn virtual_shards(&self) -> Option<usize> {
        self.method.virtual_shards()
    }

    /// Ends the servers; how many updates they made, by their staleness, if they are asynchronous.
    ///
    /// # Errors
    /// When the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    pub fn finish(mut self, communicator: &dyn Communicator) -> Result<Option<Vec<u64>>> {
        let Some(client) = self.client.take() else { return Ok(None) };
        communicator.barrier()?;
        let histogram = client.histogram()?;
        communicator.barrier()?;
        client.leave()?;
        if let Some(server) = self.server.take() {
            server.join().map_err(|_| anyhow!("parameter server: its thread panicked"))??;
        }
        Ok(self.is_asynchronous().then_some(histogram))
    }

    fn reduction(
        &mut self,
        (layout, plan): (&ParameterLayout, &BucketPlan),
        communicator: Arc<dyn Communicator>,
        sgd: SgdConfig,
        server_link: Option<Arc<dyn Communicator>>,
        (gpu, whereabouts): (Option<usize>, &Arc<Whereabouts>),
    ) -> Result<Box<dyn BucketReduction>, CollectiveError> {
        match self.method {
            SyncMethod::Allreduce { compression, compress_warmup_steps, .. } if compression.is_some() => {
                let warmup = compress_warmup_steps;
                Ok(Box::new(CompressedReduction::new(compression.0, warmup, (layout, plan), communicator)?))
            }
            SyncMethod::Allreduce { reduction, .. } => match reduction.kind() {
                Some(kind) => Ok(Box::new(SumReduction::new(kind, communicator)?)),
                None => by_nccl(&*communicator, gpu, whereabouts),
            },
            SyncMethod::Exact { virtual_shards } => {
                let num_own = own_shards(virtual_shards, communicator.rank(), communicator.world_size()).len();
                Ok(Box::new(ExactReduction::new(communicator, num_own)?))
            }
            SyncMethod::LocalSgd { .. } => Ok(Box::new(SumReduction::new(ReductionKind::Library, communicator)?)),
            SyncMethod::ParameterServer { .. } => {
                check_threads(&self.method, &*communicator)?;
                let link = match server_link {
                    Some(link) => link,
                    None => communicator.duplicate()?,
                };
                let servers = server_plan(&self.method, plan, link.world_size());
                let beside = servers.servers.contains(&link.rank()).then(|| {
                    let update = ServerSgd::new(sgd, layout, plan);
                    Arc::new(Server::new(&servers, Arc::clone(&link), Box::new(update)))
                });
                if let Some(server) = beside.clone() {
                    let thread = std::thread::Builder::new().name("parameter server".to_owned());
                    let thread = thread.spawn(move || server.serve_or_end_the_job());
                    let thread = thread.map_err(|error| CollectiveError::Thread { text: error.to_string() })?;
                    self.server = Some(thread);
                }
                let client = Arc::new(ServerClient::new(servers, link, beside));
                self.client = Some(Arc::clone(&client));
                Ok(Box::new(client))
            }
        }
    }
}

/// The sum on GPUs; without an index of its own a rank has the GPU of its index on its node.
#[cfg(feature = "nccl")]
fn by_nccl(
    communicator: &dyn Communicator,
    gpu: Option<usize>,
    whereabouts: &Arc<Whereabouts>,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    let gpu = gpu.unwrap_or(communicator.topology().local_rank);
    Ok(Box::new(distributed::NcclReduction::new(communicator, gpu, Arc::clone(whereabouts))?))
}

#[cfg(not(feature = "nccl"))]
fn by_nccl(
    _communicator: &dyn Communicator,
    _gpu: Option<usize>,
    _whereabouts: &Arc<Whereabouts>,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    unreachable!("a program without nccl refuses --reduction nccl before it starts")
}

/// Refuses servers beside workers where two threads of a process may not communicate at once.
///
/// # Errors
/// [`CollectiveError::ServerNeedsThreads`], on all ranks, also if it is so on some; or when the job ends.
///
/// # Collective
/// Must be called by all ranks of `communicator`.
pub fn check_threads(method: &SyncMethod, communicator: &dyn Communicator) -> Result<(), CollectiveError> {
    let SyncMethod::ParameterServer { placement: PlacementKind::Beside, .. } = method else { return Ok(()) };
    let mut without = [u64::from(!communicator.supports_threads())];
    communicator.all_reduce_max_u64(&mut without)?;
    if without == [0] || communicator.world_size() == 1 {
        return Ok(());
    }
    Err(CollectiveError::ServerNeedsThreads { library: communicator.library() })
}

/// Serves on a rank that does nothing else, until the workers have left.
///
/// # Errors
/// When the job ends.
pub fn serve<M: Module>(
    config: &SyncConfig,
    sgd: SgdConfig,
    model: &M,
    server_link: Arc<dyn Communicator>,
    whereabouts: &Arc<Whereabouts>,
) -> Result<(), CollectiveError> {
    let layout = ParameterLayout::new(model);
    let plan = BucketPlan::new(&layout, reducer_config(config, &layout).bucket_cap_bytes);
    let servers = server_plan(&config.method, &plan, server_link.world_size());
    let update = ServerSgd { whereabouts: Some(Arc::clone(whereabouts)), ..ServerSgd::new(sgd, &layout, &plan) };
    whereabouts.enter(watchdog::Phase::Serving);
    let served = Server::new(&servers, server_link, Box::new(update)).serve();
    whereabouts.enter(watchdog::Phase::Ending);
    served
}

fn reducer_config(config: &SyncConfig, layout: &ParameterLayout) -> ReducerConfig {
    let total_bytes = layout.num_elements() * size_of::<f32>();
    ReducerConfig { bucket_cap_bytes: bucket_cap_bytes(config, total_bytes), overlap: config.overlap }
}

/// The largest bucket of a model with `total_bytes` of gradients.
pub fn bucket_cap_bytes(config: &SyncConfig, total_bytes: usize) -> usize {
    match config.method {
        // Buckets are what servers share: there are at least two for each.
        SyncMethod::ParameterServer { servers, .. } => config.bucket_cap_bytes.min(total_bytes.div_ceil(2 * servers)),
        _ => config.bucket_cap_bytes,
    }
}

/// When servers update: a bound of 0 leaves no room for asynchrony.
pub(crate) fn consistency(asynchronous: Option<Staleness>) -> Consistency {
    match asynchronous {
        None | Some(Staleness { bound: Some(0) }) => Consistency::Synchronous,
        Some(Staleness { bound }) => Consistency::Asynchronous { bound },
    }
}

/// Which rank of the `world_size` ranks that include the servers serves what.
fn server_plan(method: &SyncMethod, plan: &BucketPlan, world_size: usize) -> ServerPlan {
    let SyncMethod::ParameterServer { servers, placement, asynchronous } = *method else {
        unreachable!("only this method has servers");
    };
    let ranks = match placement {
        PlacementKind::Beside => (0..servers).collect(),
        PlacementKind::Own => (world_size - servers..world_size).collect(),
    };
    ServerPlan::new(plan, method.num_workers(world_size), ranks, consistency(asynchronous))
}

/// Says which bucket is being reduced.
#[derive(Debug)]
struct Noted {
    inner: Box<dyn BucketReduction>,
    whereabouts: Arc<Whereabouts>,
}

impl BucketReduction for Noted {
    fn reduce(&mut self, bucket: usize, values: &mut Vec<f32>) -> Result<Traffic, CollectiveError> {
        self.whereabouts.bucket(Some(bucket));
        let traffic = self.inner.reduce(bucket, values);
        self.whereabouts.bucket(None);
        traffic
    }

    fn take_back(&mut self) {
        self.inner.take_back();
    }

    fn carried(&self) -> Option<Carried> {
        self.inner.carried()
    }

    fn go_on(&mut self, num_steps: u64, carried: &Carried) {
        self.inner.go_on(num_steps, carried);
    }

    fn num_slabs(&self) -> usize {
        self.inner.num_slabs()
    }

    fn is_needed_alone(&self) -> bool {
        self.inner.is_needed_alone()
    }
}

/// The virtual shards of a rank: consecutive ones, as many on each rank as can be.
pub fn own_shards(num_shards: usize, rank: usize, world_size: usize) -> Range<usize> {
    num_shards * rank / world_size..num_shards * (rank + 1) / world_size
}

/// The optimizer on a server.
#[derive(Debug)]
struct ServerSgd {
    plan: BucketPlan,
    sgd: Sgd,
    /// Of a rank that only serves.
    whereabouts: Option<Arc<Whereabouts>>,
}

impl ServerSgd {
    /// At zero: root sends the parameters before any worker asks for them.
    fn new(sgd: SgdConfig, layout: &ParameterLayout, plan: &BucketPlan) -> Self {
        let sgd = Sgd::new(sgd, layout, vec![0.0; layout.num_elements()]);
        Self { plan: plan.clone(), sgd, whereabouts: None }
    }
}

impl ServerSgd {
    fn enter(&self, phase: watchdog::Phase) {
        self.whereabouts.iter().for_each(|whereabouts| whereabouts.enter(phase));
    }
}

impl ShardUpdate for ServerSgd {
    fn update(&mut self, bucket: usize, learning_rate: f64, gradient: &[f32]) {
        self.enter(watchdog::Phase::Optimizer);
        self.sgd.update_in_place(learning_rate, self.plan.buckets()[bucket].elements.clone(), gradient);
        self.enter(watchdog::Phase::Serving);
    }

    fn state(&self, bucket: usize) -> (&[f32], &[f32]) {
        let elements = self.plan.buckets()[bucket].elements.clone();
        (&self.sgd.parameters()[elements.clone()], &self.sgd.velocities()[elements])
    }

    fn restore(&mut self, bucket: usize, parameters: &[f32], velocities: &[f32]) {
        self.sgd.restore_elements(self.plan.buckets()[bucket].elements.clone(), parameters, velocities);
    }
}
