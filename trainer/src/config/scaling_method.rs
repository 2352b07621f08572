//! A method of synchronisation in one word, for lists of them.
//!
//! In: text such as `allreduce:ring`, `allreduce+bf16`, `parameter-server:2@own`, `local-sgd:8`.
//! Out: the configuration which the flags of `train` with the same meaning give. Invariant: what
//! [`scaling_method_name`] writes is read as the same method.

use clap::ValueEnum;

use super::error::{ConfigError, invalid};
use super::options;
use super::sync::{SyncConfig, SyncMethod};
use crate::config::choices::{DeviceChoice, PlacementKind, ReductionChoice, SyncKind};
use crate::config::cli::SyncArgs;

/// Syntax of a method.
const EXPECTED: &str = "allreduce[:mpi|:ring|:halving-doubling|:hierarchical][+bf16|+f16|+powersgd:RANK|+topk:PERCENT], exact, \
     parameter-server[:SERVERS][@beside|@own], async-parameter-server[:SERVERS[:STALENESS]][@beside|@own] or local-sgd[:STEPS]";

/// The method that `text` names, with the other options of `args`, for a world of at most
/// `most_ranks`.
pub(super) fn scaling_method(
    text: &str,
    args: &SyncArgs,
    most_ranks: usize,
) -> Result<SyncConfig, ConfigError> {
    let refuse = |got: &str| invalid("--methods", EXPECTED, format!("\"{}\"{got}", text.trim()));
    let unread = || refuse("");
    let (word, compress) = match text.trim().split_once('+') {
        Some((word, compress)) => (
            word,
            Some(
                compress
                    .parse()
                    .map_err(|error: String| refuse(&format!(": {error}")))?,
            ),
        ),
        None => (text.trim(), None),
    };
    let (word, placement) = match word.split_once('@') {
        Some((word, place)) => (
            word,
            Some(PlacementKind::from_str(place, false).map_err(|_| unread())?),
        ),
        None => (word, None),
    };
    let mut parts = word.split(':');
    let name = parts.next().unwrap_or_default();
    let mut args = SyncArgs {
        compress,
        server_placement: placement,
        ..args.clone()
    };
    let number = |part: &str| part.parse::<u64>().map_err(|_| unread());
    match name {
        "exact" => args.reduction = Some(ReductionChoice::Exact),
        _ => args.sync = Some(SyncKind::from_str(name, false).map_err(|_| unread())?),
    }
    if let Some(part) = parts.next() {
        match args.sync {
            Some(SyncKind::Allreduce) => {
                args.reduction = Some(ReductionChoice::from_str(part, false).map_err(|_| unread())?)
            }
            Some(SyncKind::ParameterServer | SyncKind::AsyncParameterServer) => {
                args.servers = Some(number(part)? as usize)
            }
            Some(SyncKind::LocalSgd) => args.every = Some(number(part)?),
            _ => return Err(unread()),
        }
    }
    if let Some(part) = parts.next() {
        match args.sync {
            Some(SyncKind::AsyncParameterServer) => args.staleness = Some(number(part)?),
            _ => return Err(unread()),
        }
    }
    if parts.next().is_some() || args.sync == Some(SyncKind::PostLocalSgd) {
        return Err(unread());
    }
    if args.reduction == Some(ReductionChoice::Exact) {
        args.virtual_shards = Some(most_ranks);
    }
    if args.reduction == Some(ReductionChoice::Nccl) {
        return Err(unread());
    }
    options::expect_ranges(&args)
        .and_then(|()| args.clone().decide(most_ranks, DeviceChoice::Flex))
        .and_then(|section| {
            options::expect_effect(&args, &section)?;
            Ok(section.config(DeviceChoice::Flex))
        })
        .map_err(|error| refuse(&format!(": {error}")))
}

/// The method in one word.
pub fn scaling_method_name(method: &SyncMethod) -> String {
    let at = |placement: PlacementKind| match placement {
        PlacementKind::Beside => "",
        PlacementKind::Own => "@own",
    };
    match method {
        SyncMethod::Allreduce { compression, .. } if compression.is_some() => {
            format!("allreduce+{compression}")
        }
        SyncMethod::Allreduce { reduction, .. } => format!("allreduce:{reduction}"),
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

    fn read(text: &str) -> Result<SyncConfig, String> {
        scaling_method(text, &SyncArgs::default(), 64).map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in [
            "allreduce:mpi",
            "allreduce:ring",
            "allreduce:halving-doubling",
            "allreduce:hierarchical",
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
            "allreduce:nccl",
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
