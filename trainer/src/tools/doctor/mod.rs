//! Whether a job with these resources would train well: what `trainer doctor` finds and says.
//!
//! In: the ranks, their machines, a data set, a directory. Out: a [`Diagnosis`], the same on all ranks.
//! Invariant: what one rank finds is gathered, never acted upon alone, so that no rank waits for one that has stopped; judging
//! is a function of the gathered facts.

mod cpu_set;
mod diagnosis;
mod facts;
mod gradients;
mod judge;
mod machine;
mod network;
mod render;
mod storage;

pub use cpu_set::CpuSet;
pub use diagnosis::{Diagnosis, MapLine, Row, Verdict};
pub use facts::{
    Complaint, ComputeFacts, DataFacts, PlaceFacts, ProgramFacts, RankFacts, examine,
    stands_alone_beside_others,
};
pub use gradients::GradientFacts;
pub use judge::diagnose;
pub use machine::{GpuFacts, InterfaceFacts, MemoryFacts, ProcessorFacts};
pub use network::{SpeedFacts, SumFacts};
pub use render::lines;
pub use storage::OutputFacts;
