"""Makes the files that a release of DDL consists of, and tries them where users are: docs/releasing.md."""
