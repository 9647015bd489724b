"""From a run folder to statements: certificates, tables, costs and exports."""
