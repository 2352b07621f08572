//! The configuration of `predict-scaling`.
//!
//! In: its flags. Out: plain values. Invariant: numbers of ranks ascend without duplicates.

use std::path::PathBuf;

use simulate::{NamedNetwork, Scaling, SimulationError};

use super::commands::{BenchConfig, MAX_SIMULATED, file_name, simulated_ranks};
use super::error::{ConfigError, invalid, no_effect, within};
use super::family::Family;
use super::scaling_method::scaling_method;
use super::sync::SyncSection;
use super::{file, options};
use crate::config::cli::{BenchArgs, PredictScalingArgs, SyncArgs};

/// Default methods: every method, and both kinds of compression.
const METHODS: [&str; 9] = [
    "allreduce:hierarchical",
    "allreduce:ring",
    "allreduce:halving-doubling",
    "allreduce+bf16",
    "allreduce+powersgd:4",
    "exact",
    "parameter-server:1",
    "async-parameter-server:1",
    "local-sgd:8",
];

/// The predictions of `trainer predict-scaling`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingConfig {
    /// Files of steps. A second file gives the part of a step that does not depend on the batch.
    pub profiles: Vec<PathBuf>,
    /// The step that is measured now, without files. Strong scaling also measures a step with fewer
    /// samples.
    pub bench: Option<BenchConfig>,
    /// Networks, at least one.
    pub networks: Vec<NamedNetwork>,
    /// Numbers of training ranks, ascending.
    pub ranks: Vec<usize>,
    /// Methods with their buckets.
    pub methods: Vec<SyncSection>,
    /// Batch that stays constant.
    pub scaling: Scaling,
    /// Output file.
    pub output: Option<PathBuf>,
}

/// Flags of predictions that need no measured step, except paths.
#[rustfmt::skip]
const PREDICTING: [&str; 7] =
    ["network", "ranks", "ranks-per-node", "methods", "scaling", "bucket-mib", "overlap"];

impl ScalingConfig {
    /// Resolves the flags; returns `None` if only measured or published figures are shown.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the option and the remedy.
    pub fn resolve(
        args: &PredictScalingArgs,
        family: &Family,
        world_size: usize,
    ) -> Result<Option<Self>, ConfigError> {
        if world_size > 1 {
            return Err(invalid(
                "predict-scaling",
                "one rank, which predicts the others; start it without mpirun or srun",
                format!("{world_size} ranks"),
            ));
        }
        let is_given = |flags: &[&str]| -> Result<Option<String>, ConfigError> {
            let typed = file::table(args)?;
            let mut others = options::flags(&typed).filter(|(flag, _)| !flags.contains(flag));
            Ok(others.next().map(|(flag, _)| format!("--{flag}")))
        };
        if args.profile.is_none() && (args.measured.is_some() || args.published) {
            let output = args.output.as_ref().map(|_| "--output".to_owned());
            return match is_given(&[])?.or(output) {
                None => Ok(None),
                Some(flag) => Err(no_effect(
                    flag,
                    "with --measured or --published alone, which predict nothing more",
                    "add --profile FILE or leave it out",
                )),
            };
        }
        if args.profile.is_some()
            && let Some(flag) = is_given(&PREDICTING)?
        {
            let because = "with --profile, whose step was measured";
            return Err(no_effect(flag, because, "leave it out"));
        }
        let powers = || (0..=10).map(|power| 1 << power).collect();
        let mut ranks = args.ranks.clone().unwrap_or_else(powers);
        simulated_ranks("--ranks", &ranks)?;
        ranks.sort_unstable();
        ranks.dedup();
        let sync = SyncArgs {
            bucket_mib: args.bucket_mib,
            overlap: args.overlap,
            ..SyncArgs::default()
        };
        let all = METHODS.map(str::to_owned).to_vec();
        let ranks_per_node = args
            .ranks_per_node
            .map(|ranks| within("--ranks-per-node", ranks, 1..=MAX_SIMULATED))
            .transpose()?;
        let networks = args.network.clone().unwrap_or_else(NamedNetwork::built_in);
        let networks = NamedNetwork::read_all(&networks, ranks_per_node);
        let methods = args.methods.as_ref().unwrap_or(&all).iter();
        Ok(Some(Self {
            bench: bench(args, family)?,
            profiles: args.profile.clone().unwrap_or_default(),
            networks: networks.map_err(|error| of_network("--network", error))?,
            ranks,
            methods: methods
                .map(|text| scaling_method(text, &sync, MAX_SIMULATED))
                .collect::<Result<_, _>>()?,
            scaling: args.scaling.unwrap_or(Scaling::Weak),
            output: file_name("--output", args.output.as_ref())?,
        }))
    }
}

/// Returns the step to measure, without files; otherwise checks the number of files.
fn bench(args: &PredictScalingArgs, family: &Family) -> Result<Option<BenchConfig>, ConfigError> {
    let Some(files) = &args.profile else {
        let bench = BenchArgs {
            batch_size_per_rank: args.batch_size_per_rank,
            steps: args.steps,
            warmup_steps: args.warmup_steps,
            model: args.model.clone(),
            compute: args.compute,
            ..BenchArgs::default()
        };
        return BenchConfig::resolve(&bench, family, 1).map(Some);
    };
    let most = match args.scaling {
        Some(Scaling::Strong) => 2,
        _ => 1,
    };
    if !(1..=most).contains(&files.len()) {
        let expected = "one file, or two with --scaling strong";
        return Err(invalid(
            "--profile",
            expected,
            format!("{} files", files.len()),
        ));
    }
    Ok(None)
}

/// Converts an error about the networks of `option`.
pub(super) fn of_network(option: &str, error: SimulationError) -> ConfigError {
    ConfigError(format!("{option}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cli::typed;

    fn resolve_on(flags: &str, world_size: usize) -> Result<Option<ScalingConfig>, String> {
        ScalingConfig::resolve(&typed(flags), &Family::BUILT_IN, world_size)
            .map_err(|error| error.to_string())
    }

    fn scaling(flags: &str) -> ScalingConfig {
        resolve_on(flags, 1).unwrap().unwrap()
    }

    #[test]
    fn without_flags_every_method_is_predicted_on_every_named_network() {
        let scaling = scaling("");
        assert_eq!((scaling.methods.len(), scaling.networks.len()), (9, 3));
        assert_eq!(scaling.ranks, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]);
        for network in scaling.networks {
            assert_eq!(network.source, "named");
        }
    }

    #[test]
    fn options_that_cannot_be_or_have_no_effect_are_refused() {
        for (flags, world_size, expected) in [
            ("--network token-ring", 1, "--network"),
            ("--network 1gbe,1gbe", 1, "1gbe twice"),
            ("--network absent.json", 1, "--network: expected a file"),
            ("--network 50us,113Mbit/s", 1, "113Mbit/s"),
            (
                "--profile step.json --steps 3",
                1,
                "--steps has no effect with --profile",
            ),
            ("--measured study --ranks 2", 1, "--ranks has no effect"),
            (
                "--published --batch-size-per-rank 2",
                1,
                "--batch-size-per-rank has",
            ),
            ("--measured study --output o", 1, "--output has no effect"),
            ("--network 1gbe,absent.json", 1, "got absent.json"),
            ("--ranks 0", 1, "--ranks: expected 1 to 4096 ranks, got 0"),
            (
                "--ranks-per-node 0",
                1,
                "--ranks-per-node: expected a whole number from 1 to",
            ),
            (
                "--profile a,b",
                1,
                "one file, or two with --scaling strong, got 2",
            ),
            ("", 2, "without mpirun or srun, got 2 ranks"),
        ] {
            let error = resolve_on(flags, world_size).unwrap_err();
            assert!(error.contains(expected), "{flags}: {error}");
        }
        let of_list = resolve_on("--network 1gbe,token-ring", 1).unwrap_err();
        assert!(of_list.ends_with("got \"token-ring\""), "{of_list}");
        assert!(resolve_on("--measured study", 1).unwrap().is_none());
    }
}
