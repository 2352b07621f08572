//! A bill of materials: what is inside the program, for those who must know.
//!
//! In: the crates. Out: CycloneDX 1.5 as JSON. Invariant: no date and no serial number, so that the same crates give the same bytes.
//! Source: CycloneDX 1.5, <https://cyclonedx.org/docs/1.5/json/>; package URLs as <https://github.com/package-url/purl-spec> has them.

use serde_json::{Value, json};

use super::dependencies::{Dependency, PROGRAM};

/// The bill of these crates; the program is one of them.
pub(super) fn of(dependencies: &[Dependency]) -> Value {
    let (program, components): (Vec<_>, Vec<_>) = dependencies
        .iter()
        .partition(|crate_| crate_.name == PROGRAM);
    let graph = dependencies.iter().map(|crate_| {
        let needs: Vec<String> = crate_
            .needs
            .iter()
            .map(|(name, version)| reference(name, version))
            .collect();
        json!({ "ref": reference(&crate_.name, &crate_.version), "dependsOn": needs })
    });
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": program.first().map(|crate_| component(crate_, "application")) },
        "components": components.into_iter().map(|crate_| component(crate_, "library")).collect::<Vec<_>>(),
        "dependencies": graph.collect::<Vec<_>>(),
    })
}

fn component(crate_: &Dependency, kind: &str) -> Value {
    let reference = reference(&crate_.name, &crate_.version);
    let mut component = json!({
        "type": kind,
        "bom-ref": reference,
        "name": crate_.name,
        "version": crate_.version,
        "purl": reference,
        "licenses": [{ "expression": crate_.licence }],
    });
    if let Some(checksum) = &crate_.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &crate_.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

fn reference(name: &str, version: &str) -> String {
    // A plus, of build metadata, would be read as a space.
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_of_the_bill_is_one_of_its_components() {
        let named = |name: &str, needs: &[&str]| Dependency {
            name: name.to_owned(),
            version: "1.0.0+a".to_owned(),
            needs: needs
                .iter()
                .map(|need| ((*need).to_owned(), "1.0.0+a".to_owned()))
                .collect(),
            ..Dependency::default()
        };
        let bill = of(&[named("half", &[]), named(PROGRAM, &["half"])]);
        assert_eq!(
            bill["metadata"]["component"]["purl"],
            "pkg:cargo/trainer@1.0.0%2Ba"
        );
        assert_eq!(
            bill["components"][0]["bom-ref"],
            bill["dependencies"][1]["dependsOn"][0]
        );
    }
}
