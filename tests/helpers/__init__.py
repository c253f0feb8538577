"""What tests share and no test is: models, cases, judges, the browser."""
