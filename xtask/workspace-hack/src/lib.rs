//! Nothing: this package is its list of dependencies.
