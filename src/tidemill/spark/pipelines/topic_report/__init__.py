"""The parts of `tidemill pipeline run report`; `report` beside this package puts them together."""
