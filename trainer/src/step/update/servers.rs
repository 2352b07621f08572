//! Servers hold the parameters and make the updates: synchronously, when all ranks' gradients are there, or with each as it comes.
//!
//! In: this rank's buckets. Out: parameters that a server has updated; where replicas must be equal, those that all servers have then.
//! Invariant: no rank asks a server before root has told it the parameters, or goes on from a synchronisation before all have fetched.
//! Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server" (OSDI).

use std::borrow::Cow;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Result, anyhow, ensure};
use burn::module::Module;
use burn::tensor::Tensor;
use distributed::{
    CollectiveError, Communicator, ROOT,
    communicator::WaitPolicy,
    gradients::{BucketPlan, agree},
    parameter_server::{Server, ServerClient, ServerPlan, ShardUpdate},
    replica::ParameterLayout,
    watchdog::{Phase, RankStatus},
};

use super::super::StepConfig;
use super::{Finished, MicroStep, Output, Replica, Step, StepPlan, SyncMode, Update};
use crate::config::{PlacementKind, SyncConfig, SyncMethod};
use crate::measure::timer::Timer;
use crate::model::ImageClassifier;
use crate::step::optimizer::{Optimizer, OptimizerConfig, OptimizerState};
use crate::step::sync_plan::{bucket_cap_bytes, consistency, staleness};

/// A worker of parameter servers, and this rank's own server, if it has one.
#[derive(Debug)]
pub(super) struct Servers {
    replica: Replica,
    client: Arc<ServerClient>,
    server: Option<ServerThread>,
    /// Where the ranks that train meet: who waits there sleeps, as its server works on the same core.
    meeting: Arc<dyn Communicator>,
    /// Whether a server updates with each rank's gradient by itself.
    is_asynchronous: bool,
}

type ServerThread = JoinHandle<Result<(), CollectiveError>>;

impl Servers {
    /// Connects to the servers, and starts this rank's own.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    pub(super) fn start<M: Module>(
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<Self> {
        let mut connection = None;
        let replica = Replica::start(config, model, communicator, |plans, own| {
            let (client, server) = connect(config, plans, own)?;
            connection = Some((Arc::clone(&client), server));
            Ok(Box::new(client))
        })?;
        let (client, server) = connection
            .ok_or_else(|| anyhow!("parameter servers: expected a reduction, got none"))?;
        let meeting = communicator.duplicate()?;
        meeting.set_wait_policy(WaitPolicy::Sleep);
        let is_asynchronous = staleness(&config.sync.method).is_some();
        Ok(Self {
            replica,
            client,
            server,
            meeting,
            is_asynchronous,
        })
    }

    /// Takes the parameters and velocities that all servers have now.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    fn fetch(&mut self) -> Result<(), CollectiveError> {
        for (index, bucket) in self.replica.reducer.plan().buckets().iter().enumerate() {
            let (parameters, velocities) = self.client.fetch(index, bucket.elements.len())?;
            self.replica.optimizer.restore_elements(
                bucket.elements.clone(),
                &parameters,
                &velocities,
            );
        }
        // No rank goes on before all have fetched.
        self.meeting.barrier()
    }

    /// Root gives the servers its parameters and velocities.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    fn send_state(&self) -> Result<(), CollectiveError> {
        let Replica {
            reducer, optimizer, ..
        } = &self.replica;
        if self.meeting.rank() == ROOT {
            for (index, bucket) in reducer.plan().buckets().iter().enumerate() {
                let elements = bucket.elements.clone();
                let (parameters, velocities) = (optimizer.parameters(), optimizer.moments());
                self.client
                    .restore(index, &parameters[elements.clone()], &velocities[elements])?;
                // Its answer comes after the server has taken them in.
                self.client.fetch(index, bucket.elements.len())?;
            }
        }
        // No rank asks a server before root has told it.
        self.meeting.barrier()
    }
}

impl<M: ImageClassifier> Update<M> for Servers {
    fn begin(&mut self, _: &M, step: &Step) -> StepPlan {
        self.replica.begin(step);
        match self.is_asynchronous {
            true => StepPlan::of_own_samples(step, SyncMode::AllReduce),
            false => StepPlan::all_reduce(step),
        }
    }

    fn end_forward(&mut self, _: &mut M, output: Option<Output>) -> Result<()> {
        self.replica.end_forward(output)
    }

    fn backward(&mut self, model: &M, loss: Option<Tensor<1>>, step: &Step, micro: &MicroStep) {
        self.replica.backward(model, loss, step, micro);
    }

    fn finish(
        &mut self,
        model: &mut M,
        step: &Step,
        _: &StepPlan,
        timer: &Timer,
    ) -> Result<Finished> {
        let status = self.replica.reduce(timer)?;
        let Replica {
            reducer, optimizer, ..
        } = &mut self.replica;
        let traffic = reducer.report().traffic;
        {
            let _optimizer = timer.enter(Phase::Optimizer);
            reducer
                .synced()
                .buckets()
                .iter()
                .for_each(|bucket| optimizer.take_parameters(bucket));
        }
        let mut stop = status.is_some_and(|status| status.stop);
        // What a stopped run saves is on the servers.
        if step.context.must_sync || stop {
            let _waiting = timer.enter(Phase::Waiting);
            stop = agree(&*self.meeting, &self.replica.header(step))?.stop;
            self.fetch()?;
            // A server adds whatever comes; what it holds is the same for all who fetch now.
            ensure!(
                self.replica
                    .optimizer
                    .parameters()
                    .iter()
                    .all(|value| value.is_finite()),
                "step {}: expected finite parameters on the servers, got NaN or infinity; begin another run from its weights (--weights) with a lower --learning-rate or --loss-scale",
                step.context.step
            );
        }
        let _optimizer = timer.enter(Phase::Optimizer);
        self.replica.place(model);
        Ok(Finished {
            stop,
            scores: self.replica.scores(),
            traffic,
            ..Finished::default()
        })
    }

    fn parameters(&self) -> Cow<'_, [f32]> {
        self.replica.optimizer.parameters().into()
    }

    fn optimizer_state(&self) -> OptimizerState {
        self.replica.optimizer.state()
    }

    fn restore(&mut self, model: &M, state: &OptimizerState) -> Result<()> {
        self.replica.restore(model, state);
        Ok(())
    }

    fn attach(&mut self, model: &M) -> Result<()> {
        self.send_state()?;
        self.replica.attach(model)?;
        Ok(())
    }

    fn replica(&self) -> Option<&Replica> {
        Some(&self.replica)
    }

    fn end(self: Box<Self>) -> Result<Option<Vec<u64>>> {
        self.meeting.barrier()?;
        let histogram = self.client.histogram()?;
        self.meeting.barrier()?;
        self.client.leave()?;
        if let Some(server) = self.server {
            server
                .join()
                .map_err(|_| anyhow!("parameter server: its thread panicked"))??;
        }
        Ok(self.is_asynchronous.then_some(histogram))
    }
}

/// A connection to all servers, of which this rank's own, if it has one, is started on a thread.
fn connect(
    config: &StepConfig,
    (layout, plan): (&ParameterLayout, &BucketPlan),
    communicator: Arc<dyn Communicator>,
) -> Result<(Arc<ServerClient>, Option<ServerThread>), CollectiveError> {
    let method = &config.sync.method;
    check_threads(method, &*communicator)?;
    let link = match &config.server_link {
        Some(link) => Arc::clone(link),
        None => communicator.duplicate()?,
    };
    let servers = server_plan(method, plan, link.world_size());
    let beside = servers.servers.contains(&link.rank()).then(|| {
        let update = ServerSgd::new(config.optimizer, layout, plan);
        Arc::new(Server::new(&servers, Arc::clone(&link), Box::new(update)))
    });
    let start = |server: Arc<Server>| {
        let thread = Builder::new()
            .name("parameter server".to_owned())
            .spawn(move || server.serve_or_end_the_job());
        thread.map_err(|error| CollectiveError::Thread {
            text: error.to_string(),
        })
    };
    let server = beside.clone().map(start).transpose()?;
    let rank_status = Arc::clone(&config.rank_status);
    let client = ServerClient::new(servers, link, beside, rank_status);
    Ok((Arc::new(client), server))
}

/// Refuses servers beside workers where two threads of a process may not communicate at once.
///
/// # Errors
/// [`CollectiveError::ServerNeedsThreads`], on all ranks, also if it is so on some; or when the job ends.
///
/// # Collective
/// Must be called by all ranks of `communicator`.
pub fn check_threads(
    method: &SyncMethod,
    communicator: &dyn Communicator,
) -> Result<(), CollectiveError> {
    let SyncMethod::ParameterServer {
        placement: PlacementKind::Beside,
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
    Err(CollectiveError::ServerNeedsThreads {
        library: communicator.library(),
    })
}

/// Serves on a rank that does nothing else, until the workers have left.
pub fn serve<M: Module>(
    config: &SyncConfig,
    optimizer: OptimizerConfig,
    model: &M,
    server_link: Arc<dyn Communicator>,
    rank_status: &Arc<RankStatus>,
) -> Result<(), CollectiveError> {
    let layout = ParameterLayout::new(model);
    let plan = BucketPlan::new(
        &layout,
        bucket_cap_bytes(config, layout.num_elements() * size_of::<f32>()),
    );
    let servers = server_plan(&config.method, &plan, server_link.world_size());
    let update = ServerSgd {
        status: Some(Arc::clone(rank_status)),
        ..ServerSgd::new(optimizer, &layout, &plan)
    };
    rank_status.enter(Phase::Serving);
    let served = Server::new(&servers, server_link, Box::new(update)).serve();
    rank_status.enter(Phase::Ending);
    served
}

/// Which rank of the `world_size` ranks that include the servers serves what.
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
        PlacementKind::Beside => (0..servers).collect(),
        PlacementKind::Own => (world_size - servers..world_size).collect(),
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
    sgd: Optimizer,
    /// Of a rank that only serves.
    status: Option<Arc<RankStatus>>,
}

impl ServerSgd {
    /// At zero: root sends the parameters before any worker asks for them.
    fn new(optimizer: OptimizerConfig, layout: &ParameterLayout, plan: &BucketPlan) -> Self {
        let sgd = Optimizer::new(optimizer, layout, vec![0.0; layout.num_elements()]);
        Self {
            plan: plan.clone(),
            sgd,
            status: None,
        }
    }

    fn enter(&self, phase: Phase) {
        self.status.iter().for_each(|status| status.enter(phase));
    }
}

impl ShardUpdate for ServerSgd {
    fn update(&mut self, bucket: usize, learning_rate: f64, gradient: &[f32]) {
        self.enter(Phase::Optimizer);
        self.sgd.update_elements(
            learning_rate,
            self.plan.buckets()[bucket].elements.clone(),
            gradient,
        );
        self.enter(Phase::Serving);
    }

    fn state(&self, bucket: usize) -> (&[f32], &[f32]) {
        let elements = self.plan.buckets()[bucket].elements.clone();
        (
            &self.sgd.parameters()[elements.clone()],
            &self.sgd.moments()[elements],
        )
    }

    fn restore(&mut self, bucket: usize, parameters: &[f32], velocities: &[f32]) {
        self.sgd.restore_elements(
            self.plan.buckets()[bucket].elements.clone(),
            parameters,
            velocities,
        );
    }
}
