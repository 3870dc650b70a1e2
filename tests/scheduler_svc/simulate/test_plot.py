from xml.etree import ElementTree

from scheduler_svc.simulate.measures import Measures, Series
from scheduler_svc.simulate.plot import draw_svg
from scheduler_svc.simulate.routing import RoundRobin
from scheduler_svc.simulate.simulation import Simulation
from tests.scheduler_svc.simulate.factories import make_engine, make_trace_request

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_has_a_curve_for_every_replica():
    engines = [make_engine(), make_engine()]
    requests = [make_trace_request(0.01 * number) for number in range(20)]
    Simulation(engines, RoundRobin()).run(requests)
    root = ElementTree.fromstring(draw_svg(engines[0].close(), [e.series for e in engines]))
    curves = root.findall(f".//{SVG}polyline")
    assert len(curves) == 3 * len(engines)
    assert all(len(curve.get("points").split()) > 5 for curve in curves)


def test_a_run_without_requests_has_a_picture_too():
    root = ElementTree.fromstring(draw_svg(Measures(), [Series()]))
    assert len(root.findall(f"{SVG}g")) == 6
