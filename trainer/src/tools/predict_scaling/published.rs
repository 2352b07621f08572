//! Published scaling figures as they stand in files.
//!
//! In: what the simulation says of them. Out: [`PublishedFigure`]s.

use anyhow::Result;
use records::PublishedFigure;
use simulate::{PublishedAnswer, published_answers};

/// What the simulation says of every figure.
///
/// # Errors
/// When a figure cannot be simulated.
pub fn answers() -> Result<Vec<PublishedFigure>> {
    Ok(published_answers()?.into_iter().map(as_written).collect())
}

fn as_written(answer: PublishedAnswer) -> PublishedFigure {
    let PublishedAnswer { claim, predicted_efficiency } = answer;
    PublishedFigure {
        source: claim.source.to_owned(),
        what: claim.what.to_owned(),
        ranks: claim.ranks as u64,
        published_efficiency: Some(claim.efficiency),
        predicted_efficiency: Some(predicted_efficiency),
        assumed: claim.assumed.to_owned(),
    }
}
