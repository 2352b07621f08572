//! Networks by name, description or measurement.
//!
//! In: text of `--network`. Out: [`NamedNetwork`]. Invariant: names in a list differ.

use std::path::Path;

use crate::network::{PRESETS, preset};
use crate::{Link, NetworkError, NetworkModel, SimulationError};

/// A network with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedNetwork {
    /// Name as typed, or the name of the file.
    pub name: String,
    /// `named`, `flags`, or `measured` and the file.
    pub source: String,
    /// Links and nodes.
    pub model: NetworkModel,
}

impl NamedNetwork {
    /// Returns the built-in networks.
    pub fn built_in() -> Vec<String> {
        PRESETS.map(|(name, _)| name.to_owned()).to_vec()
    }

    /// Reads a name, a description, or a file of `trainer netbench --output`.
    ///
    /// # Errors
    /// If there is no such network, or the file has none.
    pub fn read(text: &str) -> Result<Self, SimulationError> {
        if names_a_measurement(text) {
            let path = Path::new(text.trim());
            let name = path.file_stem().unwrap_or(path.as_os_str());
            return Ok(Self {
                name: name.to_string_lossy().into_owned(),
                model: measured(path)?,
                source: format!("measured {}", path.display()),
            });
        }
        let is_built_in = text.split('@').next().and_then(preset).is_some();
        Ok(Self {
            name: text.to_owned(),
            source: if is_built_in { "named" } else { "flags" }.to_owned(),
            model: text.parse().map_err(|error| {
                let NetworkError { expected, got, .. } = error;
                let place = if got == text {
                    String::new()
                } else {
                    format!(" in \"{text}\"")
                };
                SimulationError(format!("expected {expected}, got \"{got}\"{place}"))
            })?,
        })
    }

    /// Reads networks and lists of networks, with `ranks_per_node` ranks on each node if given.
    ///
    /// # Errors
    /// Same as [`read`](Self::read); also if two networks have one name.
    pub fn read_all(
        texts: &[String],
        ranks_per_node: Option<usize>,
    ) -> Result<Vec<Self>, SimulationError> {
        let mut networks: Vec<Self> = Vec::new();
        for text in texts {
            // A comma separates latency and bandwidth, but also names in a list.
            let first = text.split(',').next().unwrap_or_default().trim();
            let begins_with_latency = first.starts_with(|c: char| c.is_ascii_digit())
                && first.parse::<NetworkModel>().is_err()
                && !names_a_measurement(first);
            let is_one = begins_with_latency || text.parse::<NetworkModel>().is_ok();
            let items = if is_one {
                vec![text.as_str()]
            } else {
                text.split(',').collect()
            };
            for item in items {
                let mut network = Self::read(item.trim())?;
                if let Some(ranks) = ranks_per_node {
                    let link = network.model.node.map_or(Link::MEMORY, |node| node.link);
                    network.model.node = None;
                    if ranks > 1 {
                        network.model = network.model.with_nodes(ranks, link).with_shared_memory();
                    }
                }
                let name = &network.name;
                if networks.iter().any(|other| other.name == *name) {
                    let text = format!("expected networks with different names, got {name} twice");
                    return Err(SimulationError(text));
                }
                networks.push(network);
            }
        }
        Ok(networks)
    }
}

fn names_a_measurement(text: &str) -> bool {
    text.trim().to_ascii_lowercase().ends_with(".json")
}

/// Reads the network in a file of `trainer netbench --output`.
fn measured(path: &Path) -> Result<NetworkModel, SimulationError> {
    let refuse = |got: String| {
        let path = path.display();
        SimulationError(format!(
            "expected a file that `trainer netbench --output` wrote, got {path}: {got}"
        ))
    };
    let text = records::file::read(path).map_err(|error| refuse(error.to_string()))?;
    let record: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    match record.get("network") {
        Some(serde_json::Value::String(network)) => {
            network.parse().map_err(|error| refuse(format!("{error}")))
        }
        Some(serde_json::Value::Null) => Err(refuse(
            "its sizes or its one rank determine no network; measure larger sizes on several ranks"
                .to_owned(),
        )),
        _ => Err(refuse("no network in it".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_network_is_read_from_its_file_and_other_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = directory.path().join("Network.JSON");
            std::fs::write(&path, text).unwrap();
            NamedNetwork::read(path.to_str().unwrap()).map_err(|error| error.to_string())
        };
        let network = read("{\"network\": \"30us,113MB/s@2:shared:1us,5000MB/s\"}").unwrap();
        assert_eq!(network.model.ranks_per_node(), 2);
        assert!(network.name == "Network" && network.source.starts_with("measured "));
        assert!(
            read("{\"network\": null}")
                .unwrap_err()
                .contains("determine no network")
        );
        assert!(
            read("{\"network\": \"token-ring\"}")
                .unwrap_err()
                .contains("token-ring")
        );
        for text in ["", "[]", "{}", "{\"network\": 3}", "\u{0}"] {
            let error = read(text).unwrap_err();
            assert!(
                error.contains("expected a file that `trainer netbench --output` wrote"),
                "{error}"
            );
        }
    }

    #[test]
    fn networks_are_names_numbers_or_lists_of_names() {
        let read = |texts: &[&str], ranks| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            NamedNetwork::read_all(&texts, ranks).unwrap()
        };
        let networks = read(&["ib-edr,1gbe", "50us,113MB/s@2"], None);
        let facts: Vec<[&str; 2]> = networks
            .iter()
            .map(|network| [network.name.as_str(), network.source.as_str()])
            .collect();
        let expected = [
            ["ib-edr", "named"],
            ["1gbe", "named"],
            ["50us,113MB/s@2", "flags"],
        ];
        assert_eq!(facts, expected);
        let network = read(&["10gbe"], Some(4))[0].model;
        assert_eq!(network.to_string(), "10gbe@4:shared");
    }
}
