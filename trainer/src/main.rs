//! Lockstep's program for the networks of `burn-resnet` and `networks`.

use std::process::ExitCode;

use trainer::commands::program::program;
use trainer::model::network::NetworkFamily;

fn main() -> ExitCode {
    program::<NetworkFamily>()
}
