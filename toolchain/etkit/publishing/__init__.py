"""What people publish about built programs: model cards, and catalogs for applications."""
