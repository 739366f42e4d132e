"""The figures of the report, one small file each; all go through `canvas.save`."""
