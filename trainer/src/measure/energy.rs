//! Energy of this machine's CPUs, measured by RAPL.
//!
//! In: `/sys/class/powercap`, or a folder of the same layout. Out: joules between start and end.
//! Invariant: only the first rank of a node reads the counters, and root counts each machine once.
//! An unknown energy is `None`, not 0.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use distributed::communicator::Topology;
use serde::{Deserialize, Serialize};

/// Folder of Linux's energy counters.
pub const POWERCAP: &str = "/sys/class/powercap";

/// Interval between two reads. At a kilowatt, a counter wraps after some minutes.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Energy of a machine's CPU packages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineEnergy {
    /// Boot identity of the machine, which its containers share.
    pub machine: String,
    /// Energy; `None` if the counters cannot be read.
    pub joules: Option<f64>,
}

/// Counters of the CPU packages.
#[derive(Debug)]
pub struct Packages {
    packages: Vec<Package>,
    last_look: Instant,
}

/// A CPU package, including its domains such as cores and memory.
#[derive(Debug)]
struct Package {
    counter: PathBuf,
    /// Largest value of the counter, microjoules.
    range: u64,
    last: u64,
    microjoules: u64,
}

impl Packages {
    /// Opens the counters below `powercap` and starts counting.
    ///
    /// # Errors
    /// If there are no counters, or one cannot be read: the sum would be incomplete.
    pub fn open(powercap: &Path) -> Result<Self> {
        let mut packages = Vec::new();
        for entry in fs::read_dir(powercap).into_iter().flatten().flatten() {
            let zone = entry.path();
            let name = fs::read_to_string(zone.join("name")).unwrap_or_default();
            let is_rapl = entry
                .file_name()
                .to_string_lossy()
                .starts_with("intel-rapl:");
            if is_rapl && name.starts_with("package") {
                let counter = zone.join("energy_uj");
                packages.push(Package {
                    range: number(&zone.join("max_energy_range_uj"))?,
                    last: number(&counter)?,
                    counter,
                    microjoules: 0,
                });
            }
        }
        ensure!(
            !packages.is_empty(),
            "no RAPL package in {}, as on most virtual machines",
            powercap.display()
        );
        Ok(Self {
            packages,
            last_look: Instant::now(),
        })
    }

    pub fn num_packages(&self) -> usize {
        self.packages.len()
    }

    /// Returns the joules since the counters were opened.
    ///
    /// Must be called before any counter wraps twice.
    pub fn joules(&mut self) -> Result<f64> {
        self.last_look = Instant::now();
        for package in &mut self.packages {
            let now = number(&package.counter)?;
            let wrapped = if now < package.last { package.range } else { 0 };
            package.microjoules += (wrapped + now).saturating_sub(package.last);
            package.last = now;
        }
        let total: u64 = self
            .packages
            .iter()
            .map(|package| package.microjoules)
            .sum();
        Ok(total as f64 / 1e6)
    }
}

fn number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| {
        format!(
            "{} (the administrator can make it readable: chmod a+r)",
            path.display()
        )
    })?;
    text.trim()
        .parse()
        .with_context(|| format!("{}: expected a number, got {text:?}", path.display()))
}

/// Energy meter of one rank.
#[derive(Debug, Default)]
pub struct EnergyMeter {
    /// Machine; `None` on a rank that does not read the counters.
    machine: Option<String>,
    powercap: PathBuf,
    /// Counters; present only between start and end.
    packages: Option<Packages>,
    /// Energy so far; `None` after a failure.
    joules: Option<f64>,
}

impl EnergyMeter {
    /// Returns the meter of a rank. The first rank of a node reads the counters.
    pub fn of_rank(topology: &Topology) -> Self {
        let boot = || records::boot_id().unwrap_or_else(|| topology.node.clone());
        Self {
            machine: (topology.local_rank == 0).then(boot),
            powercap: PathBuf::from(POWERCAP),
            packages: None,
            joules: Some(0.0),
        }
    }

    pub fn begin(&mut self) {
        if self.machine.is_some() {
            self.packages = Packages::open(&self.powercap).ok();
            if self.packages.is_none() {
                self.joules = None;
            }
        }
    }

    /// Reads the counters before they wrap.
    ///
    /// Must be called regularly between start and end. Most calls cost nothing.
    pub fn look(&mut self) {
        if let Some(packages) = &mut self.packages
            && packages.last_look.elapsed() > LOOK_EVERY
            && packages.joules().is_err()
        {
            self.packages = None;
            self.joules = None;
        }
    }

    pub fn end(&mut self) {
        if let Some(mut packages) = self.packages.take() {
            self.joules = self
                .joules
                .zip(packages.joules().ok())
                .map(|(before, joules)| before + joules);
        }
    }

    /// Returns the energy since the last call; `None` on a rank that does not read the counters.
    pub fn take(&mut self) -> Option<MachineEnergy> {
        let joules = self.joules.replace(0.0);
        self.machine
            .clone()
            .map(|machine| MachineEnergy { machine, joules })
    }
}

/// Returns the joules of all machines; `None` if the energy of a machine is unknown.
pub fn total<'a>(ranks: impl Iterator<Item = Option<&'a MachineEnergy>>) -> Option<f64> {
    let mut machines: Vec<&MachineEnergy> = Vec::new();
    for energy in ranks.flatten() {
        if !machines.iter().any(|known| known.machine == energy.machine) {
            machines.push(energy);
        }
    }
    machines
        .iter()
        .map(|energy| energy.joules)
        .sum::<Option<f64>>()
        .filter(|_| !machines.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(powercap: &Path, zone: &str, name: &str, energy_uj: &str) {
        let zone = powercap.join(zone);
        fs::create_dir_all(&zone).unwrap();
        for (file, text) in [
            ("name", name),
            ("energy_uj", energy_uj),
            ("max_energy_range_uj", "262143328850"),
        ] {
            fs::write(zone.join(file), format!("{text}\n")).unwrap();
        }
    }

    fn machine() -> tempfile::TempDir {
        let powercap = tempfile::tempdir().unwrap();
        write(powercap.path(), "intel-rapl:0", "package-0", "1000000");
        write(powercap.path(), "intel-rapl:0:0", "core", "500000");
        write(powercap.path(), "intel-rapl:1", "package-1", "262143000000");
        write(powercap.path(), "intel-rapl:2", "psys", "7000000");
        powercap
    }

    fn meter(powercap: &Path, local_rank: usize) -> EnergyMeter {
        let topology = Topology::from_nodes(local_rank, &["n1".to_owned(), "n1".to_owned()]);
        EnergyMeter {
            powercap: powercap.to_owned(),
            ..EnergyMeter::of_rank(&topology)
        }
    }

    #[test]
    fn packages_are_summed_without_their_domains_and_across_a_wrapped_counter() {
        let powercap = machine();
        let mut packages = Packages::open(powercap.path()).unwrap();
        assert_eq!(packages.num_packages(), 2);
        write(powercap.path(), "intel-rapl:0", "package-0", "3500000");
        write(powercap.path(), "intel-rapl:0:0", "core", "900000");
        write(powercap.path(), "intel-rapl:1", "package-1", "671150");
        assert_eq!(packages.joules().unwrap(), 2.5 + 1.0);
        write(powercap.path(), "intel-rapl:1", "package-1", "1671150");
        assert_eq!(packages.joules().unwrap(), 4.5);
    }

    #[test]
    fn an_unreadable_counter_is_an_error() {
        let powercap = machine();
        fs::remove_file(powercap.path().join("intel-rapl:1/energy_uj")).unwrap();
        let error = format!("{:#}", Packages::open(powercap.path()).unwrap_err());
        assert!(
            error.contains("intel-rapl:1/energy_uj") && error.contains("chmod a+r"),
            "{error}"
        );
        let error = Packages::open(&powercap.path().join("none"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no RAPL package"), "{error}");
        let mut meter = meter(powercap.path(), 0);
        meter.begin();
        meter.end();
        assert_eq!(meter.take().unwrap().joules, None);
    }

    #[test]
    fn the_first_rank_of_a_node_reads_only_between_begin_and_end() {
        let powercap = machine();
        let mut reader = meter(powercap.path(), 0);
        for joules in [2, 3] {
            reader.begin();
            write(
                powercap.path(),
                "intel-rapl:0",
                "package-0",
                &format!("{joules}000000"),
            );
            reader.look();
            reader.end();
            write(powercap.path(), "intel-rapl:0", "package-0", "1500000");
        }
        assert_eq!(reader.take().unwrap().joules, Some(1.0 + 1.5));
        assert_eq!(reader.take().unwrap().joules, Some(0.0));
        let mut other = meter(powercap.path(), 1);
        other.begin();
        other.end();
        assert_eq!(other.take(), None);
    }

    #[test]
    fn a_machine_counts_once_and_an_unknown_energy_has_no_sum() {
        let of = |machine: &str, joules| {
            Some(MachineEnergy {
                machine: machine.to_owned(),
                joules,
            })
        };
        let sum = |ranks: &[Option<MachineEnergy>]| total(ranks.iter().map(Option::as_ref));
        assert_eq!(
            sum(&[
                of("a", Some(2.0)),
                None,
                of("a", Some(2.5)),
                of("b", Some(3.0))
            ]),
            Some(5.0)
        );
        assert_eq!(sum(&[of("a", Some(2.0)), of("b", None)]), None);
        assert_eq!(sum(&[None]), None);
    }
}
