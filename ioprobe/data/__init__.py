"""Sharded datasets: found, described, written and read.

Nothing is imported here, so that ``import ioprobe.data`` stays light. The public modules:

    urls       list_shards(url) -> ShardSet: expand braces, globs and folders; format; sizes
    describe   describe(url) -> DatasetFacts: from headers and listings, no sample is read
    spec       Spec: what to synthesize
    synth      synthesize(spec, url): a dataset from a seed
    loaders    make_loader(url, ...) -> torch DataLoader
    decode     bytes of a field -> image, array, audio or tokens
    formats    one module a format, all with the same small surface
"""
