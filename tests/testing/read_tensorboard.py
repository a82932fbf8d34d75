"""Prints, as JSON, what TensorBoard shows of a folder: read by its own backend and plugins.

{"scalars": {run: {tag: [[step, value]...]}}, "texts": {run: {tag: markdown}},
 "hparams": [{"session", "group", "status", "values": {name: value}, "metrics": {tag: last value}}]}
"""
import json
import sys

from tensorboard import context
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

ALL = 10000


def open_folder(folder):
    multiplexer = plugin_event_multiplexer.EventMultiplexer(
        tensor_size_guidance={"scalars": ALL, "text": ALL, "hparams": ALL})
    multiplexer.AddRunsFromDirectory(folder)
    multiplexer.Reload()
    return data_provider.MultiplexerDataProvider(multiplexer, folder)


def scalars_of(provider, request):
    read = provider.read_scalars(request, experiment_id="", plugin_name="scalars", downsample=ALL)
    return {run: {tag: [[point.step, round(float(point.value), 4)] for point in points]
                  for tag, points in tags.items()} for run, tags in read.items()}


def texts_of(provider, request):
    read = provider.read_tensors(request, experiment_id="", plugin_name="text", downsample=ALL)
    return {run: {tag: points[-1].numpy.item().decode() for tag, points in tags.items()}
            for run, tags in read.items()}


def hparams_of(provider, request):
    handler = list_session_groups.Handler(
        request, backend_context.Context(base_plugin.TBContext(data_provider=provider)), "",
        api_pb2.ListSessionGroupsRequest(
            slice_size=ALL, allowed_statuses=[0, 1, 2, 3],
            col_params=[]))
    sessions = []
    for group in handler.run().session_groups:
        for session in group.sessions:
            sessions.append({
                "session": session.name, "group": group.name,
                "status": api_pb2.Status.Name(session.status),
                "values": {name: getattr(value, value.WhichOneof("kind"))
                           for name, value in group.hparams.items()},
                "metrics": {metric.name.tag: round(metric.value, 4)
                            for metric in session.metric_values}})
    return sessions


def main():
    provider = open_folder(sys.argv[1])
    request = context.RequestContext()
    print(json.dumps({"scalars": scalars_of(provider, request), "texts": texts_of(provider, request),
                      "hparams": hparams_of(provider, request)}, allow_nan=True, sort_keys=True))


if __name__ == "__main__":
    main()
