//! A method of synchronisation in one word, for lists of methods.
//!
//! In: text such as `allreduce:ring`, `allreduce+bf16`, `parameter-server:2@own`, `local-sgd:8`.
//! Out: the section that the equivalent flags of `train` give.
//! Invariant: a method that [`scaling_method_name`] writes is read as the same method.

use clap::ValueEnum;

use super::error::{ConfigError, invalid};
use super::options;
use super::sync::{SyncMethod, SyncSection};
use crate::config::choices::{DeviceChoice, ReductionChoice, ServerPlacement, SyncKind};
use crate::config::cli::SyncArgs;

/// Syntax of a method.
const EXPECTED: &str = "allreduce[:mpi|:ring|:halving-doubling|:hierarchical|:nccl][+bf16|+f16|+powersgd:RANK|+topk:PERCENT], exact, \
     parameter-server[:SERVERS][@beside|@own], async-parameter-server[:SERVERS[:STALENESS]][@beside|@own] or local-sgd[:STEPS]";

/// Returns the method that `text` names, with the other options of `args`, for a world of at most
/// `most_ranks`.
pub(super) fn scaling_method(
    text: &str,
    args: &SyncArgs,
    most_ranks: usize,
) -> Result<SyncSection, ConfigError> {
    let text = text.trim();
    let refuse = |error: &str| invalid("--methods", EXPECTED, format!("\"{text}\"{error}"));
    let args = flags(text, args, most_ranks).ok_or_else(|| refuse(""))?;
    let device = match args.reduction {
        Some(ReductionChoice::Nccl) => DeviceChoice::Cuda(None),
        _ => DeviceChoice::Flex,
    };
    options::expect_ranges(&args)
        .and_then(|()| args.clone().decide(most_ranks, device))
        .and_then(|section| {
            options::expect_effect(&args, &section)?;
            Ok(section)
        })
        .map_err(|error| refuse(&format!(": {error}")))
}

/// Returns the equivalent flags of `train`.
fn flags(text: &str, args: &SyncArgs, most_ranks: usize) -> Option<SyncArgs> {
    let mut args = args.clone();
    let mut text = text;
    if let Some((rest, compress)) = text.split_once('+') {
        args.compress = Some(compress.parse().ok()?);
        text = rest;
    }
    if let Some((rest, place)) = text.split_once('@') {
        args.server_placement = Some(ServerPlacement::from_str(place, false).ok()?);
        text = rest;
    }
    let mut parts = text.split(':');
    match parts.next()? {
        "exact" => args.reduction = Some(ReductionChoice::Exact),
        name => args.sync = Some(SyncKind::from_str(name, false).ok()?),
    }
    if let Some(part) = parts.next() {
        match args.sync? {
            SyncKind::Allreduce => {
                args.reduction = Some(ReductionChoice::from_str(part, false).ok()?);
            }
            SyncKind::ParameterServer | SyncKind::AsyncParameterServer => {
                args.servers = Some(part.parse().ok()?);
            }
            SyncKind::LocalSgd => args.every = Some(part.parse().ok()?),
            SyncKind::PostLocalSgd => return None,
        }
    }
    if let Some(part) = parts.next() {
        if args.sync? != SyncKind::AsyncParameterServer {
            return None;
        }
        args.staleness = Some(part.parse().ok()?);
    }
    if args.reduction == Some(ReductionChoice::Exact) {
        args.virtual_shards = Some(most_ranks);
    }
    let is_simulated = args.sync != Some(SyncKind::PostLocalSgd);
    (is_simulated && parts.next().is_none()).then_some(args)
}

/// Returns the method in one word.
pub fn scaling_method_name(method: &SyncMethod) -> String {
    let at = |placement: ServerPlacement| match placement {
        ServerPlacement::Beside => "",
        ServerPlacement::Own => "@own",
    };
    match method {
        SyncMethod::Allreduce { compression, .. } if compression.is_some() => {
            format!("allreduce+{compression}")
        }
        SyncMethod::Allreduce {
            reduction: Some(reduction),
            ..
        } => format!("allreduce:{reduction}"),
        // The default of GPUs.
        SyncMethod::Allreduce { .. } => format!("allreduce:{}", ReductionChoice::Nccl),
        SyncMethod::Exact { .. } => "exact".to_owned(),
        SyncMethod::ParameterServer {
            servers,
            placement,
            asynchronous: None,
        } => {
            format!("parameter-server:{servers}{}", at(*placement))
        }
        SyncMethod::ParameterServer {
            servers,
            placement,
            asynchronous: Some(staleness),
        } => {
            let bound = staleness
                .bound
                .map_or(String::new(), |bound| format!(":{bound}"));
            format!("async-parameter-server:{servers}{bound}{}", at(*placement))
        }
        SyncMethod::LocalSgd {
            every,
            from_step: 0,
        } => format!("local-sgd:{every}"),
        SyncMethod::LocalSgd { every, .. } => format!("post-local-sgd:{every}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SyncSection, String> {
        scaling_method(text, &SyncArgs::default(), 64).map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in [
            "allreduce:mpi",
            "allreduce:ring",
            "allreduce:halving-doubling",
            "allreduce:hierarchical",
            "allreduce:nccl",
            "allreduce+bf16",
            "allreduce+powersgd:4",
            "allreduce+topk:0.1",
            "exact",
            "parameter-server:2",
            "parameter-server:2@own",
            "async-parameter-server:1",
            "async-parameter-server:3:4@own",
            "local-sgd:16",
        ] {
            assert_eq!(scaling_method_name(&read(text).unwrap().method), text);
        }
        assert_eq!(
            scaling_method_name(&read(" allreduce ").unwrap().method),
            "allreduce:hierarchical"
        );
    }

    #[test]
    fn what_is_no_method_is_refused_with_all_that_are() {
        for text in [
            "",
            "ring",
            "allreduce:tree",
            "allreduce:ring:2",
            "allreduce+zip",
            "allreduce:ring+bf16",
            "local-sgd:0",
            "parameter-server:0",
            "parameter-server@cloud",
            "parameter-server:1:2",
            "post-local-sgd:4",
            "exact:2",
            "local-sgd+bf16",
            "allreduce@own",
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.starts_with("--methods: expected allreduce[:mpi")
                    && error.contains(&format!("\"{text}\"")),
                "{error}"
            );
        }
    }
}
